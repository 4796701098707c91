"""What is on its way to the GPU beside batches: inputs to rings, and weights over the link."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from interlace.core.tensor import Span
from interlace.device.cuda.driver.api import CudaError, Driver
from interlace.device.cuda.driver.flag_poller import FlagPoller
from interlace.device.cuda.driver.kernels import Kernels
from interlace.device.cuda.lanes import Lane
from interlace.device.cuda.memory.mapped import MappedMemory, MappedWords
from interlace.device.cuda.memory.parameters import TransferKernels
from interlace.device.cuda.memory.staging import DeviceRings, StagedPart
from interlace.device.cuda.models.swapped_weights import SwappedWeights
from interlace.device.cuda.worker.wire import (
    FetchWeights,
    GpuAnswer,
    StagedInputs,
    StageInputs,
    StageRequest,
    WeightsMoved,
)
from interlace.device.process.wire import EvictWeights, Failed, RunBatch

#: What is enqueued cannot be called back, and delays what is more urgent.
ON_THE_WAY: Final = 2

Answers = Sequence[tuple[str, GpuAnswer]]  #: by line


class _Queued(NamedTuple):
    line: str
    weights: SwappedWeights
    asked: FetchWeights


class WeightFetcher:
    """``lane_index`` is a number of no lane, whose flag tells how far the link has come."""

    def __init__(
        self,
        driver: Driver,
        kernels: Kernels,
        mapped: MappedMemory,
        completions: FlagPoller,
        lane_index: int,
    ) -> None:
        self.lane_index = lane_index
        self._completions = completions
        self._words = MappedWords(mapped, ON_THE_WAY)
        self._transfer = TransferKernels(driver, kernels)
        self._flag = completions.flag(lane_index).device
        self._sequence = 0
        self._begun: deque[tuple[int, str]] = deque()
        self._waiting: deque[_Queued] = deque()

    @property
    def lines(self) -> Iterator[str]:
        """Of what is on its way."""
        return (line for _, line in self._begun)

    def fetch(self, line: str, weights: SwappedWeights | None, asked: FetchWeights) -> Answers:
        """Begin now or later; ``ended`` gives the answer, if it is not here already."""
        refusal = _refusal(weights, asked.layers, asked.count)
        if weights is None or refusal:
            return [(line, Failed(f"model {asked.model}: {refusal}"))]
        self._waiting.append(_Queued(line, weights, asked))
        return self._begin()

    def cancel(self, model: str) -> Answers:
        """Give up what has not begun; what has, ends well."""
        given_up = [one for one in self._waiting if one.asked.model == model]
        self._waiting = deque(one for one in self._waiting if one.asked.model != model)
        return [(one.line, Failed(f"fetch of {model}: cancelled")) for one in given_up]

    def ended(self, sequence: int) -> Answers:
        """The link has come so far."""
        answers: list[tuple[str, GpuAnswer]] = []
        while self._begun and self._begun[0][0] <= sequence:
            answers.append((self._begun.popleft()[1], WeightsMoved()))
        return [*answers, *self._begin()]

    def evict(self, weights: SwappedWeights | None, asked: EvictWeights) -> GpuAnswer:
        """Give the memory of layers back."""
        refusal = _refusal(weights, asked.layers, None)
        if weights is None or refusal:
            return Failed(f"model {asked.model}: {refusal}")
        weights.evict(asked.layers)
        return WeightsMoved()

    def forget(self, model: str, weights: SwappedWeights | None) -> Answers:
        """No partition has the model any more: nothing of it is held."""
        if weights is not None:
            weights.evict(list(weights.held))
        return self.cancel(model)

    def close(self) -> None:
        """Nothing is on its way."""
        self._words.close()

    def _begin(self) -> Answers:
        answers: list[tuple[str, GpuAnswer]] = []
        while self._waiting and len(self._begun) < ON_THE_WAY:
            line, weights, asked = self._waiting.popleft()
            try:
                weights.fetch(asked.layers, dict(zip(asked.layers, asked.links, strict=True)))
                self._tell(weights.memory.arrived())
            except CudaError as error:
                if error.sticky:
                    raise
                weights.evict(asked.layers)
                answers.append((line, Failed(f"fetch of {asked.model}: {error}")))
                continue
            self._begun.append((self._sequence, line))
        return answers

    def _tell(self, stream: int) -> None:
        sequence = self._sequence + 1
        word = sequence % ON_THE_WAY
        self._words.put(word, sequence)
        self._transfer.signal(stream, self._flag, self._words.address(word))
        self._sequence = sequence
        self._completions.submitted(self.lane_index, sequence, stream)


def _refusal(weights: SwappedWeights | None, layers: Sequence[int], count: int | None) -> str:
    """Why those cannot be its layers; empty if they can."""
    if weights is None:
        return "it is not loaded here to have its weights come and go"
    # What is between modules is a layer of the profile, too, and has no weights.
    known = len(weights.layout.layers)
    if (count is not None and count != known + 1) or any(not 0 <= at <= known for at in layers):
        return f"it has {known} layers and what is between them, its profile has others: measure it"
    return ""


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
