"""A torch model's weights in one file that processes map, in the order in which they are read.

The file is plain safetensors. Two conventions let processes map it unchanged. Unused ``__pad``
entries put every tensor on a 64-byte boundary. A permuted tensor (channels-last weights) is stored
in the order of its memory, with the permutation in ``__metadata__``. A last ``__pad`` entry is the
CRC-32 of all bytes before it.
"""

from __future__ import annotations

import json
import mmap
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from interlace.formats.page_cache import LARGE_PAGE_BYTES, open_regular
from interlace.formats.runner import Extent, ExtentsFile, WeightUse
from interlace.formats.weights_folder import checksum

ALIGNMENT_BYTES: Final = 64
CHECKSUM_BYTES: Final = 8
HEADER_LIMIT_BYTES: Final = 100 << 20
_PAD: Final = "__pad"
_NOTE: Final = "__note"

_NAMES: Final = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_DTYPES: Final = {name: dtype for dtype, name in _NAMES.items()}


def storable(tensor: torch.Tensor) -> bool:
    """Whether a tensor can lie in such a file: dense, on the host, of a plain datatype."""
    plain = tensor.layout == torch.strided and not tensor.is_quantized
    return plain and tensor.dtype in _NAMES and tensor.device.type == "cpu"


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], note: str = "") -> None:
    """Write a new file, in this order and with a ``note``, and flush it to disk.

    Each piece that is written becomes one large page of the page cache, and is mapped as one.

    Raises:
        OSError: no space, no permission, or the file exists.
    """
    entries: dict[str, Any] = {}
    orders: dict[str, str] = {}
    offset = 0
    stored: list[torch.Tensor] = []
    for name, tensor in tensors.items():
        flat, order = _in_memory_order(tensor.detach())
        if order is not None:
            orders[name] = ",".join(map(str, order))
        pad = -offset % ALIGNMENT_BYTES
        if pad:
            entries[f"{_PAD}{len(entries)}"] = _entry("U8", [pad], offset, pad)
        nbytes = flat.numel() * flat.element_size()
        entries[name] = _entry(_NAMES[flat.dtype], list(flat.shape), offset + pad, nbytes)
        stored.append(flat)
        offset += pad + nbytes
    entries[f"{_PAD}{len(entries)}"] = _entry("U8", [CHECKSUM_BYTES], offset, CHECKSUM_BYTES)
    found = 0
    with path.open("xb") as file:
        for piece in _in_pieces(_contents(_header(entries, {**orders, _NOTE: note}), stored)):
            found = zlib.crc32(piece, found)
            file.write(piece)
        file.write(found.to_bytes(CHECKSUM_BYTES, "little"))
        file.flush()
        os.fsync(file.fileno())


def is_undamaged(path: Path) -> bool:
    """Whether a file holds what was written to it, by its checksum: all of it is read.

    Raises:
        OSError: the file cannot be read.
        RepositoryError: it is a FIFO or the like.
        ValueError: it is too short to be one of tensors.
    """
    with open_regular(path) as file:
        nbytes = os.fstat(file.fileno()).st_size - CHECKSUM_BYTES
        wanted = os.pread(file.fileno(), CHECKSUM_BYTES, max(0, nbytes))
    return checksum(path, nbytes) == int.from_bytes(wanted, "little")


class TensorPlace(NamedTuple):
    """Where a tensor's bytes lie in its file, and what they are."""

    begin: int
    nbytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    order: tuple[int, ...] | None  #: its dims in the order of memory, where that is not 0, 1, 2 ...


class TensorTable(NamedTuple):
    """Where each tensor lies, by name, in the order of the file; and the note that came with it."""

    places: dict[str, TensorPlace]
    note: str


def read_table(path: Path, mapped: mmap.mmap) -> TensorTable:
    """What the file's header says.

    Raises:
        ValueError: it is not such a file, or was cut short.
    """
    length, size = int.from_bytes(mapped[:8], "little"), len(mapped)
    if length > min(size - 8, HEADER_LIMIT_BYTES):
        raise ValueError(f"{path}: header of {length} bytes in a file of {size}")
    header = json.loads(mapped[8 : 8 + length])
    orders = header.pop("__metadata__", {})
    places = {
        name: _place(8 + length, size, entry, orders.get(name))
        for name, entry in header.items()
        if not name.startswith(_PAD)
    }
    return TensorTable(places, orders.get(_NOTE, ""))


def view(memory: mmap.mmap | memoryview, place: TensorPlace) -> torch.Tensor:
    """The tensor that lies at that place in some memory."""
    count = prod(place.shape)
    if count == 0:
        return torch.empty(place.shape, dtype=place.dtype)
    flat = torch.frombuffer(memory, dtype=place.dtype, count=count, offset=place.begin)
    shaped = flat.view(place.shape)
    if place.order is None:
        return shaped
    return shaped.permute(tuple(place.order.index(dim) for dim in range(len(place.order))))


def _entry(dtype: str, shape: list[int], start: int, nbytes: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, start + nbytes]}


def _header(entries: Mapping[str, Any], orders: Mapping[str, str]) -> bytes:
    text = json.dumps({"__metadata__": dict(orders), **entries}).encode()
    return text + b" " * (-(8 + len(text)) % ALIGNMENT_BYTES)


def _contents(header: bytes, stored: Iterable[torch.Tensor]) -> Iterator[memoryview]:
    yield memoryview(len(header).to_bytes(8, "little") + header)
    pad = 0
    for tensor in stored:
        yield memoryview(bytes(pad))
        if tensor.numel():
            flat: Any = tensor.reshape(-1).view(torch.uint8).numpy()
            yield memoryview(flat)
        pad = -tensor.nbytes % ALIGNMENT_BYTES


def _in_pieces(contents: Iterable[memoryview]) -> Iterator[bytearray]:
    piece = bytearray()
    for part in contents:
        for begin in range(0, len(part), LARGE_PAGE_BYTES):
            piece += part[begin : begin + LARGE_PAGE_BYTES]
            if len(piece) >= LARGE_PAGE_BYTES:
                yield piece[:LARGE_PAGE_BYTES]
                del piece[:LARGE_PAGE_BYTES]
    yield piece


def _in_memory_order(tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...] | None]:
    if tensor.is_contiguous():
        return tensor, None
    strides = tensor.stride()
    order = tuple(sorted(range(tensor.dim()), key=lambda dim: -strides[dim]))
    permuted = tensor.permute(order)
    return (permuted, order) if permuted.is_contiguous() else (tensor.contiguous(), None)


def _place(base: int, size: int, entry: Mapping[str, Any], order: str | None) -> TensorPlace:
    dtype, shape = _DTYPES[entry["dtype"]], tuple(entry["shape"])
    start, end = entry["data_offsets"]
    if base + end > size or end - start != prod(shape) * dtype.itemsize or start < 0:
        raise ValueError(f"tensor of shape {list(shape)} does not fit its {end - start} bytes")
    dims = None if order is None else tuple(int(dim) for dim in order.split(","))
    return TensorPlace(base + start, end - start, dtype, shape, dims)


def write_weights(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    uses: Sequence[WeightUse],
    architecture: str = "",
) -> None:
    """Write a new file; ``uses`` name each tensor once.

    Raises:
        OSError: no space, no permission, or the file exists.
    """
    note = json.dumps([architecture, [[use.operator, list(use.weights)] for use in uses]])
    write_tensors(path, {name: tensors[name] for use in uses for name in use.weights}, note)


class ExtentsLayout:
    """Where the weights of a file lie; files of one architecture have it in common.

    ``extents`` are those of the ``uses``, ``extent_bytes`` what memory they take, ``use_of`` says
    which use reads a weight first.

    Raises:
        ValueError: the file is not such a file, or was cut short.
    """

    def __init__(self, path: Path, mapped: mmap.mmap) -> None:
        self.nbytes = len(mapped)
        self.places, note = read_table(path, mapped)
        self.architecture, noted = json.loads(note or '["", []]')
        uses = [WeightUse(operator, tuple(names)) for operator, names in noted]
        if [name for use in uses for name in use.weights] != list(self.places):
            raise ValueError(f"{path}: its note does not name the tensors in their order")
        self.uses = tuple(uses)
        self.use_of = {name: n for n, use in enumerate(uses) for name in use.weights}
        begins = [self.places[use.weights[0]].begin for use in uses]
        ends = [*begins, self.nbytes][1:]
        self.extents = tuple(
            Extent(begin, end - begin) for begin, end in zip(begins, ends, strict=True)
        )
        self.extent_bytes = tuple(extent.nbytes for extent in self.extents)
        self.weights_bytes = tuple(
            sum(self.places[name].nbytes for name in use.weights) for use in uses
        )


class WeightsFile(ExtentsFile):
    """Such a file of a torch model; one of a known ``layout`` is opened when it is first needed.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is not such a file, or was cut short.
    """

    def __init__(self, path: Path, layout: ExtentsLayout | None = None) -> None:
        super().__init__(path, None if layout is None else layout.nbytes)
        self.layout = layout or ExtentsLayout(path, self._mapped)
        self.uses, self.extents = self.layout.uses, self.layout.extents
        self.weights_bytes = self.layout.weights_bytes

    def tensors(
        self, index: int, memory: memoryview | None = None, at: int = 0
    ) -> dict[str, torch.Tensor]:
        """One use's weights in the mapping, or where its extent lies ``at`` a place of memory."""
        shift = 0 if memory is None else at - self.extents[index].begin
        source = self._mapped if memory is None else memory
        places = {name: self.layout.places[name] for name in self.uses[index].weights}
        return {
            name: view(source, place._replace(begin=place.begin + shift))
            for name, place in places.items()
        }


def header_of(path: Path) -> tuple[int, bytes]:
    """The file's bytes, and what it says of itself: equal for all models of an architecture.

    Of the file the page cache has no more afterwards than before.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # nothing is read ahead
        head = file.read(min(int.from_bytes(file.read(8), "little"), HEADER_LIMIT_BYTES))
        pages = -(-file.tell() // mmap.PAGESIZE)
        os.posix_fadvise(file.fileno(), 0, pages * mmap.PAGESIZE, os.POSIX_FADV_DONTNEED)
        return os.fstat(file.fileno()).st_size, head
