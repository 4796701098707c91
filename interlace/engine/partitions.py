"""The life of a partition and of the models in it, as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import Final

from interlace.core.messages import Command, Run, WakeAt
from interlace.core.plan import Partition, Slot
from interlace.engine.ledger import Ledger


class Life(Enum):
    """Where a partition stands."""

    CARVING = "carving"
    READY = "ready"
    DRAINING = "draining"
    RELEASING = "releasing"
    GONE = "gone"


#: Every change a partition can make. What is not here is a bug and stops the engine.
CHANGES: Final[dict[Life, frozenset[Life]]] = {
    Life.CARVING: frozenset({Life.READY, Life.GONE}),
    Life.READY: frozenset({Life.DRAINING, Life.GONE}),
    Life.DRAINING: frozenset({Life.READY, Life.RELEASING, Life.GONE}),
    Life.RELEASING: frozenset({Life.GONE}),
    Life.GONE: frozenset(),
}


class Stay(Enum):
    """Where a model stands in one partition."""

    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"


@dataclass(slots=True)
class Running:
    """A batch that a partition has: the work, when it began or should, when it should end."""

    run: Run
    started_ms: float
    expected_end_ms: float


@dataclass(slots=True)
class Live:
    """One partition as it is now: a ``PartitionView`` for policies, changed by the engine alone.

    ``batch`` is executed; ``following``, where the accelerator has an ``ahead_ms``, was given to it
    already and begins when ``batch`` ends.
    """

    id: str
    gpu: str
    share_pct: int
    life: Life = Life.CARVING
    units: tuple[int, ...] = ()
    stays: dict[str, Stay] = field(default_factory=dict)
    resident_bytes: dict[str, int] = field(default_factory=dict)
    slots: Sequence[Slot] = ()
    ahead_ms: float = 0.0
    batch: Running | None = None
    following: Running | None = None
    starts_ms: dict[str, float] = field(default_factory=dict)
    round_ms: float = 0.0  #: see ``perf.pace``
    ledger: Ledger = field(default_factory=Ledger)
    dying: bool = False  #: its process died; what it held is being finished

    def become(self, life: Life) -> None:
        """Move to another state.

        Raises:
            AssertionError: the table does not allow it.
        """
        assert life in CHANGES[self.life], f"partition {self.id}: {self.life} to {life}"
        self.life = life

    @property
    def accepting(self) -> bool:
        return self.life is Life.READY and not self.dying

    @property
    def given(self) -> Sequence[Running]:
        """The batches that it has, in order."""
        return [one for one in (self.batch, self.following) if one is not None]

    @property
    def opens_ms(self) -> float:
        """When the next batch may be given to it before the running one ends; infinite if not."""
        if self.following is not None or not self.ahead_ms or not self.accepting:
            return inf
        return inf if self.batch is None else self.batch.expected_end_ms - self.ahead_ms

    def takes(self, now_ms: float) -> bool:
        return self.accepting and (self.batch is None or self.opens_ms <= now_ms)

    def give(self, run: Run, run_ms: float, now_ms: float) -> Running:
        """A batch that is predicted to take ``run_ms`` is sent to it.

        Raises:
            AssertionError: it has as many as it may have.
        """
        assert self.following is None, f"partition {self.id} has two batches"
        start_ms = max(now_ms, self.free_at_ms)
        running = Running(run, start_ms, start_ms + run_ms)
        if self.batch is None:
            self.batch = running
        else:
            self.following = running
        return running

    def ended(self, batch: int, now_ms: float) -> Running | None:
        """What it had of that id, which ended; the one that follows begins."""
        first = self.batch
        if first is None or first.run.batch.id != batch:
            return None
        self.batch, self.following = self.following, None
        if self.batch is not None:
            late_ms = now_ms - self.batch.started_ms
            self.batch.started_ms += late_ms
            self.batch.expected_end_ms += late_ms
        return first

    @property
    def running(self) -> str | None:
        return self.batch.run.batch.model if self.batch else None

    @property
    def free_at_ms(self) -> float:
        last = self.following or self.batch
        return last.expected_end_ms if last else -inf

    @property
    def rows_running(self) -> int:
        return self.batch.run.batch.rows if self.batch else 0

    def last_start_ms(self, model: str) -> float:
        return self.starts_ms.get(model, float("-inf"))

    def behind_ms(self, ahead: str) -> Mapping[str, float]:
        return self.ledger.behind_ms(ahead)

    def loaded(self, model: str) -> bool:
        return self.stays.get(model) is Stay.LOADED

    def as_plan(self) -> Partition:
        """This partition as a plan would name it."""
        return Partition(self.id, self.gpu, self.share_pct, tuple(self.slots))


def opening(lives: Iterable[Live]) -> list[Command]:
    """A wake for when the first of these may be given its next batch, before it is idle."""
    at_ms = min((live.opens_ms for live in lives), default=inf)
    return [WakeAt(at_ms)] if at_ms < inf else []
