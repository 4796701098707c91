"""Weights on the GPU: one allocation a model, that all lanes and other processes read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final, NamedTuple

import torch

from interlace.device.cuda.backend.tensors import tensor_at
from interlace.device.cuda.driver.api import CudaError, Driver
from interlace.device.cuda.models.precision import ModelVariant

_ALIGN_BYTES: Final = 256  #: what cudaMalloc promises, and kernels choose their loads by


class TensorPlacement(NamedTuple):
    """Where one tensor lies in the allocation, and how."""

    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class WeightsLayout(NamedTuple):
    """Places by tensor name. ``key`` is equal where another process finds the same at each."""

    places: Mapping[str, TensorPlacement]
    nbytes: int
    key: str


class WeightsHandle(NamedTuple):
    """What another process opens the weights with: it must see them in the same variant."""

    handle: bytes
    layout_key: str
    variant: ModelVariant


def lay_out(
    tensors: Mapping[str, torch.Tensor], variant: ModelVariant, exact: frozenset[str]
) -> WeightsLayout:
    """Where everything goes, tensors that share memory once. ``exact`` ones keep their type."""
    places: dict[str, TensorPlacement] = {}
    known: dict[object, TensorPlacement] = {}
    end = 0
    for name, tensor in tensors.items():
        dtype = variant.converted(tensor.dtype, name in exact)
        identity = (tensor.data_ptr(), tensor.shape, tensor.stride(), dtype)
        place = known.get(identity)
        if place is None or not tensor.nbytes:
            stride = _stride(tensor, variant.channels_last)
            place = known[identity] = TensorPlacement(end, tuple(tensor.shape), stride, dtype)
            end += -(-tensor.numel() * dtype.itemsize // _ALIGN_BYTES) * _ALIGN_BYTES
        places[name] = place
    return WeightsLayout(places, end, hashlib.sha256(repr(places).encode()).hexdigest())


class DeviceWeights:
    """One allocation with a model's tensors, made here or opened from another process."""

    def __init__(self, driver: Driver, layout: WeightsLayout, address: int, opened: bool) -> None:
        self._driver = driver
        self._layout = layout
        self._address = address
        self._opened = opened

    @classmethod
    def allocate(cls, driver: Driver, layout: WeightsLayout) -> DeviceWeights:
        """
        Raises:
            MemoryError: what is needed and what there is.
        """
        return cls(driver, layout, allocate(driver, max(1, layout.nbytes), "its weights"), False)

    @classmethod
    def open(cls, driver: Driver, layout: WeightsLayout, shared: WeightsHandle) -> DeviceWeights:
        """The weights of another process, which must keep them until this is closed.

        Raises:
            ValueError: they are not laid out as here: another version of the model, or of torch.
            CudaError: that process let go of them, or cannot be reached.
        """
        if layout.key != shared.layout_key:
            raise ValueError("the weights of the other process are not laid out as here")
        return cls(driver, layout, driver.ipc_open(shared.handle), True)

    @property
    def own_bytes(self) -> int:
        """Device memory that closing gives back: none if they are another process's."""
        return 0 if self._opened else self._layout.nbytes

    def share(self, variant: ModelVariant) -> WeightsHandle:
        """
        Raises:
            CudaError: the platform has no CUDA IPC.
        """
        handle = self._driver.ipc_handle(self._address)
        return WeightsHandle(handle, self._layout.key, variant)

    def fill(self, originals: Mapping[str, torch.Tensor], device: str) -> None:
        """Copy and convert the originals into place, in the order of torch's current stream."""
        for name, tensor in originals.items():
            self._tensor(name, device).copy_(tensor)

    def adopt(self, tensors: Mapping[str, torch.Tensor], device: str) -> None:
        """Have the model's tensors lie here."""
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.data = self._tensor(name, device)

    def close(self) -> None:
        """Give the memory back; nothing refers to it any more."""
        if self._opened:
            self._driver.ipc_close(self._address)
        else:
            self._driver.free(self._address)

    def _tensor(self, name: str, device: str) -> torch.Tensor:
        offset, shape, stride, dtype = self._layout.places[name]
        return tensor_at(self._address + offset, shape, dtype, device, stride)


def allocate(driver: Driver, nbytes: int, what: str) -> int:
    """Device memory for a model.

    Raises:
        MemoryError: what is needed and what there is.
    """
    try:
        return driver.allocate(nbytes)
    except CudaError as error:
        if error.name != "CUDA_ERROR_OUT_OF_MEMORY":
            raise
        free, total = driver.memory()
        raise MemoryError(
            f"the model needs {nbytes} bytes for {what}, and {free} of the GPU's {total} are free; "
            f"load fewer models there, or smaller ones"
        ) from error


def _stride(tensor: torch.Tensor, channels_last: bool) -> tuple[int, ...]:
    """Dense, in rows or with channels last; the order that the model came in plays no part."""
    empty = torch.empty(tensor.shape, device="meta")
    if channels_last and tensor.dim() == 4:
        empty = empty.contiguous(memory_format=torch.channels_last)
    return tuple(empty.stride())
