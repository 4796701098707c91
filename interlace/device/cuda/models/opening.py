"""From a model's folder, of any format on a GPU, to something that runs on the GPU's memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from interlace.core.errors import RepositoryError
from interlace.core.model import Format, Model
from interlace.core.tensor import BYTES, Signature, TensorSpec
from interlace.device.cuda.backend.tensors import TORCH_TYPES
from interlace.device.cuda.models.precision import ModelVariant
from interlace.device.cuda.models.weights import DeviceWeights
from interlace.formats import open_torch
from interlace.formats.opened import OpenedModel, try_out
from interlace.formats.torch_values import named_values, pick

OpenTorch = Callable[[Model], OpenedModel]
TensorsByName = Mapping[str, torch.Tensor]


class PortableModel:
    """A torch model whose weights can be moved and converted.

    ``originals`` are its weights as the model came, on the host, until ``settle``. As a
    ``RunnableModel`` it is on every lane, and its lookup tables are weights as others are.
    """

    tables = 0

    def __init__(
        self, described: Model, opened: OpenedModel, signature: Signature, device: str
    ) -> None:
        self.described = described
        self.signature = signature
        self.device = device
        self.defaults: Mapping[str, int] = dict(opened.defaults)
        self.exact = opened.exact
        self.longest = dict(opened.longest)
        self.eager_because = opened.eager_because
        self.originals = {name: tensor.detach() for name, tensor in opened.tensors.items()}
        self.variant = ModelVariant()
        self._opened = opened
        self._call: Callable[[TensorsByName], Any] = opened.call
        self._inputs = {spec.name: spec for spec in signature.inputs}
        self._types = {spec.name: TORCH_TYPES[spec.datatype] for spec in signature.outputs}

    @property
    def tensors(self) -> TensorsByName:
        """Its weights where they are now."""
        return self._opened.tensors

    @property
    def has_convolutions(self) -> bool:
        """Whether the order of channels can matter: there is a weight of four dims."""
        return any(tensor.dim() == 4 for tensor in self.originals.values())

    def become(self, variant: ModelVariant, weights: DeviceWeights) -> None:
        """Run in this variant from now on, on these weights."""
        weights.adopt(self._opened.tensors, self.device)
        self._opened.retarget(torch.device(self.device), variant.dtype)
        self._call = self._opened.call
        if variant.compiled:
            # Inductor makes the kernels, we make the graphs.
            mode = "max-autotune-no-cudagraphs"
            self._call = torch.compile(self._call, mode=mode, dynamic=False)
        self.variant = variant

    def settle(self) -> None:
        """Let go of the weights on the host."""
        self.originals = {}

    def outputs(self, values: TensorsByName) -> tuple[torch.Tensor, ...]:
        """The outputs in the order of the signature, in rows and of the datatypes it states.

        Raises:
            ValueError: a result is not what the signature says.
        """
        wanted = {name: self._taken(name, value) for name, value in values.items()}
        found = pick(named_values(self._call(wanted)), self.signature.outputs)
        rows = next(iter(values.values())).shape[0] if self.signature.batched else 1
        return tuple(
            self._described(spec, found[spec.name], rows) for spec in self.signature.outputs
        )

    def execute(
        self, values: TensorsByName, stream: int, parameters: object
    ) -> tuple[torch.Tensor, ...]:
        """As ``outputs``, for a batch that is served."""
        return self.outputs(values)

    def close(self) -> None:
        """Forget the weights' addresses."""
        self.originals = {}
        for tensor in self._opened.tensors.values():
            with torch.no_grad():
                tensor.data = torch.empty(0, dtype=tensor.dtype)

    def _taken(self, name: str, value: torch.Tensor) -> torch.Tensor:
        value = value.reshape(self._inputs[name].model_shape(tuple(value.shape)))
        below = self._opened.below.get(name)
        if below is not None:
            # Cores refuse such an index; a GPU would stop, and with it all that it serves.
            return value.clamp(0, below - 1)
        return value.to(self.variant.converted(value.dtype))

    def _described(self, spec: TensorSpec, value: Any, rows: int) -> torch.Tensor:
        tensor: torch.Tensor = torch.as_tensor(value, device=self.device)
        dtype = self._types[spec.name]
        if tensor.dtype != dtype and tensor.dtype != self.variant.converted(dtype):
            raise ValueError(
                f"output '{spec.name}' came as {tensor.dtype}, "
                f"but the model is described as returning {spec.datatype}"
            )
        dims = (rows, *spec.own.dims) if self.signature.batched else spec.own.dims
        shape = tuple(tensor.shape)
        if len(dims) != len(shape) or any(
            one not in (-1, size) for one, size in zip(dims, shape, strict=True)
        ):
            raise ValueError(
                f"output '{spec.name}' came with shape {list(shape)}, "
                f"but the model is described as returning {list(dims)}"
            )
        told = tensor.to(dtype).resolve_conj().resolve_neg().contiguous()
        return told.reshape(spec.client_shape(shape))


def _learnt(opened: OpenedModel, model: Model) -> Signature:
    said = opened.spoken
    if said.inputs is None or said.outputs is None or said.batched is None:
        return try_out(opened.call, model, said).signature
    return Signature(said.inputs, said.outputs, said.batched, said.max_batch)


def open_portable(model: Model, device: str, open_model: OpenTorch = open_torch) -> PortableModel:
    """Open a model on the host, and learn what its description leaves open by trying it there.

    Raises:
        RepositoryError: it does not open, or a tensor of it has no fixed size (BYTES).
    """
    if model.format is Format.ONNX and open_model is open_torch:
        from interlace.device.cuda.models.onnx_call import open_onnx

        opened = open_onnx(model, device)
    elif model.format is Format.TENSORRT:
        from interlace.device.cuda.models.tensorrt_call import open_plan

        opened = open_plan(model, device)
    else:
        opened = open_model(model)
    signature = model.signature
    if not (signature.inputs and signature.outputs):
        signature = _learnt(opened, model)
    for spec in (*signature.inputs, *signature.outputs):
        if spec.datatype == BYTES:
            raise RepositoryError(
                model.path,
                f"tensor '{spec.name}' of type BYTES",
                "tensors of numbers on a GPU; such a model can be served on cores",
            )
    return PortableModel(model, opened, signature, device)
