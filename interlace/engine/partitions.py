"""The life of a partition and of the models in it, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from interlace.core.messages import Run
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
    """The batch a partition executes: the work, when it began, when it should end."""

    run: Run
    started_ms: float
    expected_end_ms: float


@dataclass(slots=True)
class Live:
    """One partition as it is now: a ``PartitionView`` for policies, changed by the engine alone."""

    id: str
    gpu: str
    share_pct: int
    life: Life = Life.CARVING
    units: tuple[int, ...] = ()
    stays: dict[str, Stay] = field(default_factory=dict)
    resident_bytes: dict[str, int] = field(default_factory=dict)
    slots: Sequence[Slot] = ()
    batch: Running | None = None
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
    def running(self) -> str | None:
        return self.batch.run.batch.model if self.batch else None

    @property
    def free_at_ms(self) -> float:
        return self.batch.expected_end_ms if self.batch else float("-inf")

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
