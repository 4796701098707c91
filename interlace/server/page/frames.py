"""What the page draws: one instant of an engine, and what became of requests until then."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from msgspec import Struct

from interlace.core.messages import (
    Command,
    Event,
    RefusedUpstream,
    RequestArrived,
    Run,
    SendReply,
    WorkFinished,
)
from interlace.core.request import Outcome, Reply
from interlace.engine.snapshot import EngineSnapshot, PartitionSnapshot

#: Deadlines of waiting requests that are drawn of one model, and latencies kept of one second.
DOTS: Final = 40
_KEPT: Final = 512


class BatchFrame(Struct, frozen=True):
    """A batch on an accelerator; times are ms on the engine's clock."""

    model: str
    rows: int
    started_ms: float
    end_ms: float


class PartitionFrame(Struct, frozen=True):
    """A tile. ``busy_ms`` grows with the time in which a batch ran.

    ``slots`` are its turns: model, rows of a batch, and rows/s that are planned.
    """

    id: str
    share_pct: int
    state: str
    slots: list[tuple[str, int, float]]
    batches: list[BatchFrame]
    busy_ms: float


class GpuFrame(Struct, frozen=True):
    """An accelerator and its tiles, by id."""

    id: str
    kind: str
    partitions: list[PartitionFrame]


class ModelFrame(Struct, array_like=True, frozen=True):
    """A model. Counts grow from when the watching began; latencies are those of the last second.

    ``due_ms`` are deadlines of waiting requests. ``weights`` is their state, empty where they
    stay. ``why`` says what a model is kept out for. ``price`` is the part of an accelerator that
    one more row/s takes, ``None`` if unknown.
    """

    name: str
    arrived: int
    in_time: int
    late: int
    refused: int
    failed: int
    p50_ms: float | None
    p99_ms: float | None
    waiting_rows: int
    due_ms: list[float]
    weights: str
    slo_ms: float
    reasons: dict[str, int]
    why: str
    price: float | None


class PageFrame(Struct, frozen=True):
    """All that is drawn of one instant. ``headroom``: by what rates could grow, if planned."""

    now_ms: float
    gpus: list[GpuFrame]
    models: list[ModelFrame]
    headroom: float | None
    settled: bool


@dataclass(slots=True)
class _ModelTally:
    arrived: int = 0
    slo_ms: float = 0.0
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    waiting: dict[int, float] = field(default_factory=dict)
    second: int = -1
    latencies_ms: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    p50_ms: float | None = None
    p99_ms: float | None = None

    def answered(self, reply: Reply, now_ms: float) -> None:
        self.waiting.pop(reply.request.id, None)
        self.outcomes[reply.outcome] += 1
        if reply.error is not None:
            self.reasons[reply.error.reason.name.lower()] += 1
        if reply.outcome in (Outcome.OK, Outcome.LATE):
            self.turn(now_ms)
            self.latencies_ms.append(now_ms - reply.request.arrived_ms)

    def turn(self, now_ms: float) -> None:
        """Close the second before, if it has passed."""
        second = int(now_ms // 1000.0)
        if second == self.second:
            return
        ordered = sorted(self.latencies_ms) if second == self.second + 1 else []
        self.p50_ms = ordered[len(ordered) // 2] if ordered else None
        self.p99_ms = ordered[int(len(ordered) * 0.99)] if ordered else None
        self.latencies_ms.clear()
        self.second = second


@dataclass(slots=True)
class _PartitionTally:
    open: int = 0  #: batches begun, or given ahead, that have not ended
    since_ms: float = 0.0
    busy_ms: float = 0.0

    def until(self, now_ms: float) -> None:
        """Count the time in which something ran."""
        if self.open:
            self.busy_ms += now_ms - self.since_ms
        self.since_ms = now_ms


class PageTally:
    """An observer of a runtime, or of a replay, that counts what frames show."""

    def __init__(self) -> None:
        self._models: dict[str, _ModelTally] = {}
        self._partitions: dict[str, _PartitionTally] = {}

    def __call__(self, now_ms: float, event: Event, commands: Sequence[Command]) -> None:
        if type(event) is RequestArrived:
            request, model = event.request, self._of(event.request.model)
            model.arrived += 1
            model.slo_ms = request.deadline_ms - request.arrived_ms
            model.waiting[request.id] = request.deadline_ms
        elif type(event) is WorkFinished and isinstance(event.work, Run):
            tally = self._at(event.work.partition, now_ms)
            tally.open = max(0, tally.open - 1)
        elif type(event) is RefusedUpstream:
            model = self._of(event.model)
            model.arrived += event.requests
            model.outcomes[Outcome.REFUSED] += event.requests
        for command in commands:
            if type(command) is SendReply:
                self._of(command.reply.request.model).answered(command.reply, now_ms)
            elif type(command) is Run:
                self._at(command.partition, now_ms).open += 1
                waiting = self._of(command.batch.model).waiting
                for request in command.batch.requests:
                    waiting.pop(request.id, None)

    def frame(self, engine: EngineSnapshot, now_ms: float, models: bool = True) -> PageFrame:
        """The instant as it is drawn; ``engine`` may be without ``models``, and so is it then."""
        gpus: dict[str, GpuFrame] = {
            gpu.id: GpuFrame(gpu.id, gpu.kind, []) for gpu in engine.fleet.gpus
        }
        for live in sorted(engine.partitions.values(), key=lambda live: live.id):
            if live.gpu in gpus:
                gpus[live.gpu].partitions.append(self._partition(live, now_ms))
        rows = [self._model(name, engine, now_ms) for name in engine.models]
        if models:
            self._forget(engine)
        return PageFrame(now_ms, list(gpus.values()), rows, engine.target.headroom, engine.reached)

    def _of(self, model: str) -> _ModelTally:
        return self._models.setdefault(model, _ModelTally())

    def _at(self, partition: str, now_ms: float) -> _PartitionTally:
        tally = self._partitions.setdefault(partition, _PartitionTally())
        tally.until(now_ms)
        return tally

    def _partition(self, live: PartitionSnapshot, now_ms: float) -> PartitionFrame:
        tally = self._at(live.id, now_ms)
        tally.open = len(live.batches)  # some had begun before the watching
        return PartitionFrame(
            live.id,
            live.share_pct,
            live.state.name.lower(),
            [(slot.model, slot.batch, slot.rows_per_s) for slot in live.slots],
            [
                BatchFrame(b.run.batch.model, b.run.batch.rows, b.started_ms, b.expected_end_ms)
                for b in live.batches
            ],
            tally.busy_ms,
        )

    def _model(self, name: str, engine: EngineSnapshot, now_ms: float) -> ModelFrame:
        seen, known = self._of(name), engine.models[name]
        seen.turn(now_ms)
        states = {one.state for one in known.weights.values()}
        ended = seen.outcomes
        return ModelFrame(
            name,
            seen.arrived,
            ended[Outcome.OK],
            ended[Outcome.LATE],
            ended[Outcome.REFUSED],
            ended[Outcome.EXPIRED] + ended[Outcome.FAILED],
            seen.p50_ms,
            seen.p99_ms,
            known.waiting_rows,
            sorted(islice(seen.waiting.values(), DOTS)),
            next((one for one in ("resident", "loading", "cold") if one in states), ""),
            seen.slo_ms,
            dict(seen.reasons),
            known.quarantine_reason or "",
            engine.target.prices.get(name),
        )

    def _forget(self, engine: EngineSnapshot) -> None:
        """What is gone is not kept: generations of models and partitions are without end."""
        for name in self._models.keys() - engine.models.keys():
            del self._models[name]
        for name in self._partitions.keys() - engine.partitions.keys():
            del self._partitions[name]
