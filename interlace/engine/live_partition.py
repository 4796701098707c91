"""A partition as it is now: its state, its models, its batches, and fair queueing in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import Final

from interlace.core.messages import Command, Run, WakeAt
from interlace.core.plan import Partition, Slot
from interlace.core.request import Batch
from interlace.policy.fairness import planned_rows_per_s
from interlace.policy.view import PartitionView

_NONE: Final[Mapping[str, float]] = {}


@dataclass(slots=True)
class ServiceTags:
    """Start-time fair queueing's tags (Goyal et al., SIGCOMM 1996), with a batch for a packet.

    A model's tag, in ms, is the rows it was served while it contended over its planned rate.
    ``_virtual_ms`` is the largest tag with which a batch began. A model that begins to contend
    starts there, since nothing is owed to it for the time before, or at its old tag if that is
    larger.
    """

    contending: set[str] = field(default_factory=set)
    planned_rows_per_s: dict[str, float] = field(default_factory=dict)
    _tags_ms: dict[str, float] = field(default_factory=dict)
    _virtual_ms: float = 0.0

    def plan(self, slots: Iterable[Slot]) -> None:
        """Set the models that have a turn; with only one, or for guests, nothing is counted."""
        planned: dict[str, float] = {}
        for slot in slots:
            if not slot.guest:
                planned[slot.model] = planned.get(slot.model, 0.0) + planned_rows_per_s(slot)
        self.planned_rows_per_s = planned if len(planned) > 1 else {}
        self._tags_ms = {m: c for m, c in self._tags_ms.items() if m in self.planned_rows_per_s}
        self.contending &= self.planned_rows_per_s.keys()

    def contend(self, models: set[str]) -> None:
        """Set the models that contend at this decision."""
        for model in models - self.contending:
            self._tags_ms[model] = max(self._tags_ms.get(model, 0.0), self._virtual_ms)
        self.contending = models

    def began(self, model: str, rows: int) -> None:
        """A batch of the model began."""
        if model in self.contending:
            start_ms = self._tags_ms[model]
            self._virtual_ms = max(self._virtual_ms, start_ms)
            self._tags_ms[model] = start_ms + rows / self.planned_rows_per_s[model] * 1000.0

    def lags_ms(self) -> Mapping[str, float]:
        """How far each contending model is behind the one of them with the largest tag."""
        if not self.contending:
            return _NONE
        most_ms = max(self._tags_ms[model] for model in self.contending)
        return {model: most_ms - self._tags_ms[model] for model in self.contending}


class PartitionState(Enum):
    """The state of a partition."""

    CREATING = "creating"
    READY = "ready"
    DRAINING = "draining"
    RELEASING = "releasing"
    GONE = "gone"


#: The legal transitions; any other is a bug and stops the engine.
TRANSITIONS: Final[dict[PartitionState, frozenset[PartitionState]]] = {
    PartitionState.CREATING: frozenset({PartitionState.READY, PartitionState.GONE}),
    PartitionState.READY: frozenset({PartitionState.DRAINING, PartitionState.GONE}),
    PartitionState.DRAINING: frozenset(
        {PartitionState.READY, PartitionState.RELEASING, PartitionState.GONE}
    ),
    PartitionState.RELEASING: frozenset({PartitionState.GONE}),
    PartitionState.GONE: frozenset(),
}


class ModelState(Enum):
    """The state of a model in one partition."""

    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"


class LaunchedBatch:
    """A batch that was sent to a partition, with its (predicted) start and its predicted end.

    ``joins`` is as in ``BatchWaits``.
    """

    __slots__ = ("expected_end_ms", "joins", "run", "started_ms")

    def __init__(self, run: Run, started_ms: float, expected_end_ms: float) -> None:
        self.joins = 0
        self.run = run
        self.started_ms = started_ms
        self.expected_end_ms = expected_end_ms


@dataclass(slots=True)
class LivePartition(PartitionView):
    """One partition as it is now, changed by the engine alone.

    ``batch`` runs; ``next_batch``, where the accelerator has an ``ahead_ms``, was sent to it
    already and begins when ``batch`` ends. Batches in ``waiting``, by id, wait for models that they
    call; no other batch of their models may begin here, unless it may join them.
    """

    id: str = field()  # machine code has the base class's descriptor here, which is no default
    gpu: str
    share_pct: int = field()
    state: PartitionState = PartitionState.CREATING
    room: int = 0
    units: tuple[int, ...] = ()
    units_mask: int = 0  #: the units as bits, where two batches on one would slow each other
    model_states: dict[str, ModelState] = field(default_factory=dict)
    resident_bytes: dict[str, int] = field(default_factory=dict)
    load_ms: dict[str, float] = field(default_factory=dict)  #: how long each model took to load
    loads_ms: float = 0.0  #: all of those, which each launch asks for
    loads_begun_ms: dict[str, float] = field(default_factory=dict)
    load_ended_ms: float = -inf  #: the last one
    slots: Sequence[Slot] = ()
    own_turns: int = 0
    ahead_ms: float = 0.0
    batch: LaunchedBatch | None = None
    next_batch: LaunchedBatch | None = None
    waiting: dict[int, LaunchedBatch] = field(default_factory=dict)
    starts_ms: dict[str, float] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)  #: of each model's rate
    sustaining_rows: dict[str, float] = field(default_factory=dict)  #: see ``engine.turns``
    service_tags: ServiceTags = field(default_factory=ServiceTags)
    rivals: Sequence[LivePartition] = field(default=(), compare=False, repr=False)
    tight: Sequence[tuple[float, int]] = ()
    kept_room: int = 0
    room_part: float = 1.0
    sequences: set[tuple[str, int | str]] = field(default_factory=set)  #: whose state is here
    dying: bool = False  #: its process died; what it held is being finished
    #: From when on a batch may be given to it: minus infinity if it is idle, infinity if never. A
    #: number that is kept, since every decision asks it of every partition.
    takes_from_ms: float = inf

    def __post_init__(self) -> None:
        self._set_takes_from()

    def transition_to(self, state: PartitionState) -> None:
        """Move to another state.

        Raises:
            AssertionError: the table does not allow it.
        """
        assert state in TRANSITIONS[self.state], f"partition {self.id}: {self.state} to {state}"
        self.state = state
        self._set_takes_from()

    def dies(self) -> None:
        """Its process died: nothing more is given to it."""
        self.dying = True
        self._set_takes_from()

    @property
    def accepting(self) -> bool:
        return self.state is PartitionState.READY and not self.dying

    @property
    def batches(self) -> Sequence[LaunchedBatch]:
        """The batches that it has, in order; those that wait are the last."""
        first = [one for one in (self.batch, self.next_batch) if one is not None]
        return [*first, *self.waiting.values()] if self.waiting else first

    def may_begin(self, model: str) -> bool:
        """False while a batch of the model waits here, unless another may join it."""
        return self.joining_rows(model) != 0

    def joining_rows(self, model: str) -> int:
        """Rows that may join the model's batches that wait here; -1 if none waits."""
        rows, most = 0, -1
        for one in self.waiting.values():
            if one.run.batch.model == model:
                rows += one.run.batch.rows
                most = one.joins
        return most if most < 0 else max(0, most - rows)

    def takes(self, now_ms: float) -> bool:
        return self.takes_from_ms <= now_ms

    def _set_takes_from(self) -> None:
        """Before the running batch ends another may be given to it by ``ahead_ms``."""
        self.takes_from_ms = inf
        if self.accepting and self.batch is None:
            self.takes_from_ms = -inf
        elif self.accepting and self.batch and self.ahead_ms and self.next_batch is None:
            self.takes_from_ms = self.batch.expected_end_ms - self.ahead_ms

    def give(self, run: Run, run_ms: float, now_ms: float) -> LaunchedBatch:
        """A batch that is predicted to take ``run_ms`` is sent to it.

        Raises:
            AssertionError: it has as many as it may have.
        """
        assert self.next_batch is None, f"partition {self.id} has two batches"
        start_ms = max(now_ms, self.free_at_ms)
        running = LaunchedBatch(run, start_ms, start_ms + run_ms)
        if self.batch is None:
            self.batch = running
        else:
            self.next_batch = running
        self._set_takes_from()
        return running

    def ended(self, batch: int, now_ms: float) -> LaunchedBatch | None:
        """What it had of that id, which ended; the one that follows begins."""
        waited = self.waiting.pop(batch, None)
        if waited is not None:
            return waited
        first = self.batch
        if first is None or first.run.batch.id != batch:
            return None
        self.batch, self.next_batch = self.next_batch, None
        if self.batch is not None:
            late_ms = now_ms - self.batch.started_ms
            self.batch.started_ms += late_ms
            self.batch.expected_end_ms += late_ms
        self._set_takes_from()
        return first

    def waits(self, batch: int, joins: int, now_ms: float) -> None:
        """A batch waits for models that it calls, or for the next time that it is executed."""
        waiting = self.ended(batch, now_ms)
        if waiting is not None:
            waiting.joins = joins
            self.waiting[batch] = waiting

    @property
    def running(self) -> Batch | None:
        return self.batch.run.batch if self.batch else None

    @property
    def free_at_ms(self) -> float:
        last = self.next_batch or self.batch
        return last.expected_end_ms if last else -inf

    def last_start_ms(self, model: str) -> float:
        return self.starts_ms.get(model, -inf)

    @property
    def lags_ms(self) -> Mapping[str, float]:
        return self.service_tags.lags_ms()

    def begin_load(self, model: str, now_ms: float) -> None:
        """It is to load a model, after those that it was asked to load before."""
        self.model_states[model] = ModelState.LOADING
        self.loads_begun_ms[model] = now_ms

    def end_load(self, model: str, resident_bytes: int | None, now_ms: float) -> None:
        """A model is loaded and holds so much, or, with ``None``, could not be."""
        begun_ms = max(self.loads_begun_ms.pop(model), self.load_ended_ms)
        self.load_ended_ms = now_ms
        if resident_bytes is None:
            del self.model_states[model]
            return
        self.model_states[model] = ModelState.LOADED
        self.resident_bytes[model] = resident_bytes
        self.loads_ms += now_ms - begun_ms - self.load_ms.get(model, 0.0)
        self.load_ms[model] = now_ms - begun_ms

    def unload(self, model: str) -> None:
        """A model is there no more."""
        self.model_states.pop(model, None)
        self.resident_bytes.pop(model, None)
        self.loads_ms -= self.load_ms.pop(model, 0.0)
        self.sequences = {key for key in self.sequences if key[0] != model}

    def loaded(self, model: str) -> bool:
        return self.model_states.get(model) is ModelState.LOADED

    def as_plan(self) -> Partition:
        """This partition as a plan would name it."""
        return Partition(self.id, self.gpu, self.share_pct, tuple(self.slots))


def next_wake(busy: Iterable[LivePartition]) -> list[Command]:
    """A wake for when the first of these may be given its next batch, before it is idle."""
    at_ms = inf
    for live in busy:
        at_ms = min(at_ms, live.takes_from_ms)
    return [WakeAt(at_ms)] if at_ms < inf else []
