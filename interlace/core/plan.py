"""Who runs where: demand, slots, partitions, plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final, NamedTuple

#: What rounding leaves unserved does not count.
_NOTHING_ROWS_PER_S: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Demand:
    """What one model is asked for: rows per second, within ``slo_ms``.

    ``attainment`` is the part of its requests that must end in time; ``cv`` the coefficient of
    variation of the times between arrivals (1 is Poisson).
    """

    model: str
    rows_per_s: float
    slo_ms: float
    max_batch: int = 32
    attainment: float = 0.99
    cv: float = 1.0


def as_rows_per_s(rows_per_s: float) -> float:
    """A stated rate in requests per second as rows per second, the unit of demands and plans.

    What a request will hold is not known beforehand: one row. Once requests arrive, the engine
    counts their rows.
    """
    return rows_per_s


def as_rate_rps(rows_per_s: float) -> float:
    """The inverse of ``as_rows_per_s``: how many requests per second a planned rate stands for."""
    return rows_per_s


@dataclass(frozen=True, slots=True)
class Slot:
    """A model's turn in a partition's duty cycle: up to ``batch`` rows, ``rows_per_s`` planned.

    A ``guest`` has no turn: it is lent the time that the partition's own models leave.
    """

    model: str
    batch: int
    rows_per_s: float
    guest: bool = False


@dataclass(frozen=True, slots=True)
class Partition:
    """A share of one accelerator and the models taking turns in it every ``duty_ms``.

    Equal ``id`` in two plans means the same live partition.
    """

    id: str
    gpu: str
    share_pct: int
    slots: tuple[Slot, ...] = ()
    duty_ms: float = 0.0


def possible(partition: Partition) -> bool:
    """True if its figures can be: every model once, batches from 1, rates and duty from 0."""
    models = [slot.model for slot in partition.slots]
    legal = all(s.batch >= 1 and 0 <= s.rows_per_s < inf for s in partition.slots)
    return legal and len(set(models)) == len(models) and 0 <= partition.duty_ms < inf


@dataclass(frozen=True, slots=True)
class ElasticBatching:
    """How a model's workers of several batch sizes on one accelerator are used (E2bird section 7).

    ``max_rows`` is MaxInf: rows in flight at most. ``best`` maps a load, in rows, to the sizes of
    the workers that serve it fastest, in descending order; empty where all workers always serve.
    """

    max_rows: int
    best: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """Partitions for a fleet. What does not fit is in ``unserved_rows_per_s``, with ``reasons``."""

    partitions: tuple[Partition, ...] = ()
    unserved_rows_per_s: Mapping[str, float] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    session_ms: float | None = None
    headroom: float | None = None  #: largest factor on every rate that still fits
    #: shares of one accelerator may add up to more than 100; the dispatcher keeps what runs below
    overlapping: bool = False
    elastic: Mapping[str, ElasticBatching] = field(default_factory=dict)  #: by model
    notes: tuple[str, ...] = ()  #: what the planner says of its own answer: gap, limits, moves
    #: accelerators that one more row/s of a model adds to the lower bound, where a server planned
    prices: Mapping[str, float] = field(default_factory=dict)

    @property
    def underserved(self) -> set[str]:
        """Models that are not served all that they ask for."""
        left = self.unserved_rows_per_s.items()
        return {model for model, rate in left if not rate <= _NOTHING_ROWS_PER_S}


class PlanMoves(NamedTuple):
    """Partitions that stay, that move to another accelerator, that appear, and that go.

    One stays if its accelerator, share and models do; batches and rates may change, which costs
    nothing.
    """

    stay: int
    move: int
    appear: int
    go: int

    def sentence(self) -> str:
        """The counts in words."""
        return (
            f"partitions of the current plan: {self.stay} stay, {self.move} move, "
            f"{self.appear} appear, {self.go} go"
        )


def moves(before: Iterable[Partition], after: Iterable[Partition]) -> PlanMoves:
    """What becomes of the partitions of ``before`` when ``after`` takes their place."""
    old, new = Counter(map(_place, before)), Counter(map(_place, after))
    gone, come = old - new, new - old
    left, fresh = Counter[object](), Counter[object]()
    for one, count in gone.items():
        left[one[1:]] += count
    for one, count in come.items():
        fresh[one[1:]] += count
    moved = (left & fresh).total()
    return PlanMoves((old & new).total(), moved, fresh.total() - moved, left.total() - moved)


def _place(part: Partition) -> tuple[str, int, frozenset[str]]:
    return part.gpu, part.share_pct, frozenset(slot.model for slot in part.slots)


def connected_components(
    plan: Plan, *, by_gpu: bool = True, together: Iterable[Sequence[str]] = ()
) -> list[Plan]:
    """The plan in parts that share no model and, ``by_gpu``, no accelerator, in the plan's order.

    Models that are named ``together`` are in one part. Partitions without a model are left out.
    """
    groups = _Groups()
    for models in together:
        for model in models:
            groups.join(f"m:{models[0]}", f"m:{model}")
    for part in plan.partitions:
        names = [f"m:{slot.model}" for slot in part.slots]
        for name in [f"g:{part.gpu}", *names] if by_gpu else names:
            groups.join(f"p:{part.id}", name)
    found: dict[str, list[Partition]] = {}
    for part in plan.partitions:
        if part.slots:
            found.setdefault(groups.root(f"p:{part.id}"), []).append(part)
    return [replace(plan, partitions=tuple(parts)) for parts in found.values()]


class _Groups:
    """Names that belong together."""

    def __init__(self) -> None:
        self._above: dict[str, str] = {}

    def root(self, name: str) -> str:
        above = self._above.setdefault(name, name)
        while above != name:
            self._above[name] = self._above[above]
            name, above = above, self._above[above]
        return name

    def join(self, one: str, other: str) -> None:
        self._above[self.root(other)] = self.root(one)
