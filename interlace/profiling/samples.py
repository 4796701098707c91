"""Synthetic tensors and requests of a model: safe contents, the sizes its folder states."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from interlace.core.model import Model
from interlace.core.request import Batch, Request
from interlace.core.tensor import BYTES, Span, Tensor, TensorSpec, element_count, frame
from interlace.formats.arrays import (
    NUMPY_TYPES,
    WORD,
    given_array,
    hinted,
    sample_shape,
    wire_bytes,
)
from interlace.shm.arena import Arena


def content(spec: TensorSpec, shape: tuple[int, ...], seed: int) -> bytes:
    """Bytes of one tensor that no sensible model chokes on, in the v2 binary form.

    Floats are uniform in 0..1. Integers are 0 or 1, which any vocabulary holds; masks are ones and
    token types zeros. ``BYTES`` elements are a short word.
    """
    count = element_count(shape)
    if spec.datatype == BYTES:
        return frame([WORD]) * count
    random = np.random.default_rng(seed)
    if spec.datatype == "BF16":  # the upper half of a float32
        values = random.random(count, dtype=np.float32)
        return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    dtype = NUMPY_TYPES[spec.datatype]
    if dtype.kind == "f":
        return random.random(count, dtype=np.float32).astype(dtype).tobytes()
    return _integers(spec.name.lower(), count, random).astype(dtype).tobytes()


def _integers(name: str, count: int, random: np.random.Generator) -> NDArray[np.int64]:
    if "mask" in name:
        return np.ones(count, dtype=np.int64)
    if "type" in name:
        return np.zeros(count, dtype=np.int64)
    return random.integers(0, 2, count)


_NEVER_MS = float("inf")


class SampleInputs:
    """Inputs for up to ``max_batch`` single-row requests of one model.

    Every request has memory of its own, as in service, as far as the arena allows; beyond that
    requests share what there is.
    """

    def __init__(self, model: Model, arena: Arena) -> None:
        """Fill the arena.

        Raises:
            MemoryError: the arena has no room for even one request.
        """
        self._model = model
        self._arena = arena
        self._offsets: list[int] = []
        self._rows: list[tuple[Tensor, ...]] = []
        self._plain = False
        wanted = model.signature.max_batch if model.signature.batched else 1
        for seed in range(wanted):
            row = self._row(seed)
            if row is None:
                break
            self._rows.append(row)
        if not self._rows:
            raise MemoryError(f"no room for one request of {model.name} in the request arena")

    def batch(self, batch_id: int, rows: int) -> Batch:
        """A batch of ``rows`` requests of one row each."""
        key = self._model.key
        requests = tuple(
            Request(
                id=batch_id * 1024 + index,
                model=key,
                arrived_ms=0.0,
                deadline_ms=_NEVER_MS,
                inputs=self._rows[index % len(self._rows)],
            )
            for index in range(rows)
        )
        return Batch(batch_id, key, requests, rows)

    def be_plain(self) -> bool:
        """Have all requests bring one row of ones instead; false if they do already."""
        if self._plain:
            return False
        self._plain = True
        self.release()
        row = self._row(0)
        self._rows.extend(() if row is None else (row,))
        return bool(self._rows)

    def release(self) -> None:
        """Give the memory back."""
        for offset in self._offsets:
            self._arena.free(offset)
        self._offsets.clear()
        self._rows.clear()

    def _row(self, seed: int) -> tuple[Tensor, ...] | None:
        signature = self._model.signature
        tensors: list[Tensor] = []
        for spec in signature.inputs:
            dims = sample_shape(spec, self._model.sample)
            shape = (1, *dims) if signature.batched else dims
            data = self._content(spec, shape, seed)
            nbytes = len(data)
            offset = self._arena.alloc(nbytes)
            if offset is None:
                self._give_up(tensors)
                return None
            self._offsets.append(offset)
            self._arena.view(offset, nbytes)[:] = data
            span = Span(self._arena.number, offset, nbytes)
            tensors.append(Tensor(spec.name, spec.datatype, shape, span))
        return tuple(tensors)

    def _content(self, spec: TensorSpec, shape: tuple[int, ...], seed: int) -> bytes:
        value = hinted(spec, shape, self._model, self._model.signature)
        if value is None and not self._plain:
            return content(spec, shape, seed)
        return wire_bytes(given_array(spec, shape, value))

    def _give_up(self, tensors: Sequence[Tensor]) -> None:
        # Half a row is of no use to anybody.
        for tensor in tensors:
            self._offsets.remove(tensor.span.offset)
            self._arena.free(tensor.span.offset)
