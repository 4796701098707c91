"""Inputs on their way to the rings of a process, and who waits for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from interlace.core.tensor import Span
from interlace.device.cuda.completion.base import Completions
from interlace.device.cuda.engine.staging import InputRings
from interlace.device.cuda.partitions.lanes import Lane
from interlace.device.cuda.worker.wire import StageInputs
from interlace.device.wire import RunBatch


class Stager:
    """Copies inputs on the lane aside; batches read them where they lie."""

    def __init__(self, rings: InputRings, lane: Lane, completions: Completions) -> None:
        self.lane = lane
        self._rings = rings
        self._completions = completions
        self._lines: deque[tuple[int, str]] = deque()
        self._forgotten: set[str] = set()

    @property
    def busy(self) -> bool:
        """Whether something is on its way."""
        return bool(self._lines)

    def begin(self, line: str, stage: StageInputs) -> None:
        """Start a copy; ``ended`` gives the line back when it has ended.

        Raises:
            ValueError: the inputs are no whole rows, or the slots do not exist or are in use.
            CudaError: no memory is left for a ring, or the driver refused.
        """
        self._forgotten.discard(stage.model)
        inputs = [(name, Span(*span)) for name, *span in stage.inputs]
        sequence = self._rings.stage(stage.model, stage.slot, stage.slots, stage.rows, inputs)
        self._completions.submitted(self.lane.index, sequence, self.lane.stream)
        self._lines.append((sequence, line))

    def ended(self, sequence: int) -> list[str]:
        """The lines of the copies that have ended."""
        self._rings.ended(sequence)
        lines = []
        while self._lines and self._lines[0][0] <= sequence:
            lines.append(self._lines.popleft()[1])
        for model in list(self._forgotten):
            self.forget(model)
        return lines

    def rows(self, run: RunBatch, slot: int) -> Mapping[str, Sequence[int]]:
        """The addresses of a staged batch's rows by input; nothing overwrites them until ``left``.

        Raises:
            ValueError: they are not staged here, or not yet.
        """
        found = self._rings.begin_batch(run.model, slot, sum(run.rows))
        return dict(zip((column.name for column in run.columns), found, strict=True))

    def left(self, run: RunBatch, slot: int) -> None:
        """That batch has ended."""
        self._rings.end_batch(run.model, slot, sum(run.rows))

    def forget(self, model: str) -> None:
        """Give a model's ring back, as soon as nothing of it is on its way or runs."""
        try:
            self._rings.forget(model)
        except ValueError:
            self._forgotten.add(model)
        else:
            self._forgotten.discard(model)
