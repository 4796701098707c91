"""Inputs being copied to the rings of a process, and the requests that wait for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from interlace.core.tensor import Span
from interlace.device.cuda.completion.flag_poller import FlagPoller
from interlace.device.cuda.driver.api import CudaError
from interlace.device.cuda.lanes import Lane
from interlace.device.cuda.memory.staging import DeviceRings, StagedPart
from interlace.device.cuda.worker.wire import StagedInputs, StageInputs, StageRequest
from interlace.device.process.wire import RunBatch

_NOT: Final = "inputs could not be staged: {}"

#: A request, and its place in the frame.
_Numbered = tuple[int, StageRequest]


class InputStager:
    """Copies inputs on the staging lane; batches read them in place."""

    def __init__(self, rings: DeviceRings, lane: Lane, completions: FlagPoller) -> None:
        self.lane = lane
        self._rings = rings
        self._completions = completions
        self._lines: deque[tuple[int, str, StagedInputs]] = deque()
        self._forgotten: set[str] = set()

    @property
    def busy(self) -> bool:
        """Whether something is on its way."""
        return bool(self._lines)

    def begin(self, line: str, stage: StageInputs) -> StagedInputs | None:
        """Start copies; ``ended`` gives the line back when all have ended.

        Requests whose slots follow each other are copied together. Returns the answer if nothing
        of it is on its way.
        """
        failures = [""] * len(stage.requests)
        for group in _groups(stage.requests):
            self._copy(group, failures)
        if all(failures):
            return StagedInputs(tuple(failures))
        try:
            sequence = self._rings.tell()
        except CudaError as error:
            if error.sticky:
                raise
            return StagedInputs(tuple(failure or _NOT.format(error) for failure in failures))
        self._completions.submitted(self.lane.index, sequence, self.lane.stream)
        self._lines.append((sequence, line, StagedInputs(tuple(failures))))
        return None

    def ended(self, sequence: int) -> list[tuple[str, StagedInputs]]:
        """The lines of the copies that have ended, and their answers."""
        self._rings.ended(sequence)
        lines = []
        while self._lines and self._lines[0][0] <= sequence:
            lines.append(self._lines.popleft()[1:])
        for model in list(self._forgotten):
            self.forget(model)
        return lines

    def _copy(self, group: Sequence[_Numbered], failures: list[str]) -> None:
        """Copy requests together, or one by one if that cannot be."""
        first = group[0][1]
        self._forgotten.discard(first.model)
        parts = [
            StagedPart(one.rows, [(name, Span(*span)) for name, *span in one.inputs])
            for _, one in group
        ]
        try:
            self._rings.copy(first.model, first.slot, first.slots, parts)
        except (CudaError, ValueError) as error:
            if isinstance(error, CudaError) and error.sticky:
                raise
            if len(group) == 1:
                failures[group[0][0]] = _NOT.format(error)
                return
            for one in group:
                self._copy([one], failures)

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


def _groups(requests: Sequence[StageRequest]) -> Iterator[list[_Numbered]]:
    """Requests of one ring whose slots follow each other, in order."""
    group: list[_Numbered] = []
    for number, request in enumerate(requests):
        if group:
            last = group[-1][1]
            same = (last.model, last.slots) == (request.model, request.slots)
            if not same or request.slot != last.slot + last.rows:
                yield group
                group = []
        group.append((number, request))
    if group:
        yield group
