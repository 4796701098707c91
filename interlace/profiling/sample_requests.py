"""Batches of synthetic requests, their inputs lying in an arena."""

from __future__ import annotations

from collections.abc import Sequence

from interlace.core.model import Model
from interlace.core.request import Batch, Request
from interlace.core.tensor import Span, Tensor
from interlace.profiling.samples import content, sample_dims, size_bytes
from interlace.shm.arena import Arena

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
            dims = sample_dims(spec, self._model.sample)
            shape = (1, *dims) if signature.batched else dims
            nbytes = size_bytes(spec, shape)
            offset = self._arena.alloc(nbytes)
            if offset is None:
                self._give_up(tensors)
                return None
            self._offsets.append(offset)
            self._arena.view(offset, nbytes)[:] = content(spec, shape, seed)
            span = Span(self._arena.number, offset, nbytes)
            tensors.append(Tensor(spec.name, spec.datatype, shape, span))
        return tuple(tensors)

    def _give_up(self, tensors: Sequence[Tensor]) -> None:
        # Half a row is of no use to anybody.
        for tensor in tensors:
            self._offsets.remove(tensor.span.offset)
            self._arena.free(tensor.span.offset)
