"""More partitions than the accelerator has room for: which run at once the dispatcher decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from interlace.core.hardware import Fleet, Gpu, Trait
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import Profiles
from interlace.packing.feasibility import feasible, known_rate
from interlace.perf.latency import Surface
from interlace.perf.memory import holds
from interlace.perf.tables import Tables

#: Costs of a row that differ by less are equal.
_ALIKE: Final = 1.001
#: Another lane of a model is at least so much wider or narrower.
_APART: Final = 1.2
_STEPS: Final = 16
#: Accelerators that have a model where memory does not hold all on each: what is left is for lanes.
_COPIES: Final = 2
#: No factor on rates is looked for beyond this.
_MOST: Final = 2.0**32
_FIXED: Final = "the accelerators' shares are fixed before a launch, or differ between them"
_NO_PLACE: Final = "not every model is in time, or finds memory"


class _LaneSize(NamedTuple):
    """A share, the batch that comes together in time, how long it takes, and a row's part of the
    accelerator's time."""

    share_pct: int
    batch: int
    run_ms: float
    row_ms: float


#: A model and its size in one partition.
_Lane = tuple[str, _LaneSize]


@dataclass(frozen=True, slots=True)
class Overcommitted:
    """Every model on every accelerator that memory allows, in three or four partitions.

    The share is where a row takes least of the accelerator in the batch that comes together in
    time: collected and run within ``patience`` of the SLO. Of equals the widest, which ends first:
    the knee, or less where small batches lose less there than the share saves. The second is as
    wide, or up to ``reach`` times as wide where a row costs at most ``dearer`` times as much: it
    ends sooner where there is room. A third is as much narrower on the same condition, and fills
    what others leave. The last is for bursts while others ask for little: the narrowest that is
    ``slower`` times as slow as the widest at most, or one more of the first.

    It serves as long as its batches take at most ``busy`` of the accelerators, since random
    arrivals leave batches that are not full, and of those the part that shares side by side can
    fill. The largest factor on all rates for which that holds is the plan's ``headroom``. No plan
    where shares are fixed beforehand (``Trait.SHARE_AT_LAUNCH``), where accelerators differ, or
    where together they have no memory for everyone.
    """

    patience: float = 0.7
    busy: float = 0.9
    dearer: float = 1.17
    reach: float = 1.5
    slower: float = 3.0

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        tables = Tables(profiles)
        asked = feasible([known_rate(one, tables) for one in demand], fleet, tables, waits=0.0)
        wanted, count = asked.wanted, len(fleet.gpus)
        rates = {one.model: one.rows_per_s for one in wanted}
        if not all(_overlaps(gpu, fleet.gpus[0]) for gpu in fleet.gpus):
            return asked.plan((), rates, dict.fromkeys(rates, _FIXED))
        surfaces = {one.model: tables.surface(one.model) for one in wanted}
        factor = self._headroom(wanted, fleet.gpus[0], count, surfaces) if wanted else 1.0
        sizes = self._sizes(wanted, factor, fleet.gpus[0], surfaces) or {}
        work = {m: rate * sizes[m].row_ms for m, rate in rates.items() if sizes}
        homes = _homes(work, fleet.gpus, profiles)
        if wanted and not any(homes):
            return asked.plan((), rates, dict.fromkeys(rates, _NO_PLACE))
        lanes: dict[frozenset[str], list[_Lane]] = {}
        for home in homes:
            if home not in lanes:
                here = [one for one in wanted if one.model in home]
                lanes[home] = self._lanes(here, factor, sizes, fleet.gpus[0], surfaces, profiles)
        factor *= min(
            (_filled(wanted, sizes, each, fleet.gpus[0]) for each in lanes.values()), default=1.0
        )
        factor *= _evenness(work, homes)
        hosts = Counter(model for home in homes for model, _ in lanes[home])
        partitions = tuple(
            Partition(f"{gpu.id}:{index}", gpu.id, size.share_pct, (slot,))
            for gpu, home in zip(fleet.gpus, homes, strict=True)
            for index, (m, size) in enumerate(lanes[home])
            for slot in [Slot(m, size.batch, rates[m] / hosts[m])]
        )
        short = {m: rate * (1.0 - factor) for m, rate in rates.items() if factor < 1.0}
        plan = asked.plan(partitions, short, dict.fromkeys(short, "the accelerators are full"))
        return replace(plan, headroom=factor, overlapping=True)

    def _headroom(
        self, demand: Sequence[Demand], gpu: Gpu, count: int, surfaces: Mapping[str, Surface]
    ) -> float:
        """The largest factor on every rate with which the accelerators are ``busy`` at most."""
        low, high = 0.0, 1.0
        while high < _MOST and self._load(demand, high, gpu, surfaces) <= self.busy * count:
            low, high = high, 2.0 * high
        for _ in range(_STEPS):
            middle = (low + high) / 2.0
            if self._load(demand, middle, gpu, surfaces) <= self.busy * count:
                low = middle
            else:
                high = middle
        return low

    def _load(
        self, demand: Sequence[Demand], factor: float, gpu: Gpu, surfaces: Mapping[str, Surface]
    ) -> float:
        """Accelerators that are busy at these rates."""
        sizes = self._sizes(demand, factor, gpu, surfaces)
        if sizes is None:
            return float("inf")
        return sum(d.rows_per_s * factor * sizes[d.model].row_ms / 1000.0 for d in demand)

    def _sizes(
        self, demand: Sequence[Demand], factor: float, gpu: Gpu, surfaces: Mapping[str, Surface]
    ) -> dict[str, _LaneSize] | None:
        """Share and batch of every model; ``None`` if one has none in time."""
        found: dict[str, _LaneSize] = {}
        for one in demand:
            faster = replace(one, rows_per_s=one.rows_per_s * factor)
            size = self._size(faster, surfaces[one.model], gpu)
            if size is None:
                return None
            found[one.model] = size
        return found

    def _size(self, one: Demand, latency: Surface, gpu: Gpu) -> _LaneSize | None:
        best: _LaneSize | None = None
        for size in self._each(one, latency, gpu):
            if best is None or size.row_ms <= best.row_ms * _ALIKE:
                best = size
        return best

    def _each(self, one: Demand, latency: Surface, gpu: Gpu) -> Iterator[_LaneSize]:
        """Every share at which the batch that comes together is in time, ascending."""
        for share_pct in gpu.shares_pct:
            if share_pct < latency.shares_pct[0]:
                continue
            batch = self._gathered(one, latency, share_pct)
            run_ms = latency.latency_ms(batch, share_pct)
            if run_ms <= self.patience * one.slo_ms:
                row_ms = run_ms * gpu.taken(share_pct) / gpu.room / batch
                yield _LaneSize(share_pct, batch, run_ms, row_ms)

    def _gathered(self, one: Demand, latency: Surface, share_pct: int) -> int:
        """The most rows that arrive and run within the patience; at least one."""
        row_ms = 1000.0 / one.rows_per_s if one.rows_per_s > 0 else float("inf")
        low, high = 1, one.max_batch
        while low < high:
            middle = (low + high + 1) // 2
            if middle * row_ms + latency.latency_ms(middle, share_pct) <= (
                self.patience * one.slo_ms
            ):
                low = middle
            else:
                high = middle - 1
        return low

    def _lanes(
        self,
        demand: Sequence[Demand],
        factor: float,
        sizes: Mapping[str, _LaneSize],
        gpu: Gpu,
        surfaces: Mapping[str, Surface],
        profiles: Profiles,
    ) -> list[_Lane]:
        """The partitions of an accelerator, the first of every model before others."""
        lanes = [(one.model, sizes[one.model]) for one in demand]
        further = []
        for one in demand:
            own = sizes[one.model]
            faster = replace(one, rows_per_s=one.rows_per_s * factor)
            others = self._further(own, list(self._each(faster, surfaces[one.model], gpu)), gpu)
            further += [(place, one.model, size) for place, size in enumerate(others)]
        for _, model, size in sorted(further, key=lambda one: one[0]):
            if holds(gpu, [(100, [*(m for m, _ in lanes), model])], profiles):
                lanes.append((model, size))
        return lanes

    def _further(self, own: _LaneSize, every: Sequence[_LaneSize], gpu: Gpu) -> list[_LaneSize]:
        """The widest share in reach where a row costs little more, else replicas; the narrowest;
        one for bursts."""
        cheap = [
            size
            for size in every
            if size.row_ms <= self.dearer * own.row_ms
            and 1.0 / self.reach <= size.share_pct / own.share_pct <= self.reach
        ]
        found = [size for size in cheap[-1:] if size.share_pct >= _APART * own.share_pct]
        if not found and 2 * gpu.taken(own.share_pct) <= gpu.room:
            found = [own]
        found += [size for size in cheap[:1] if size.share_pct * _APART <= own.share_pct]
        fastest_ms = min(size.run_ms for size in every)
        swift = next(size for size in every if size.run_ms <= self.slower * fastest_ms)
        return [*found, swift if swift.share_pct > own.share_pct else own]


def _homes(
    work: Mapping[str, float], gpus: Sequence[Gpu], profiles: Profiles
) -> list[frozenset[str]]:
    """The models of each accelerator: all, or each on ``_COPIES`` of them as far as memory goes.

    ``work`` is of the whole rates. A copy goes where there is the least of it, the models with the
    most of it first. No accelerator has any if a model finds memory nowhere.
    """
    if all(holds(gpu, [(100, list(work))], profiles) for gpu in gpus):
        return [frozenset(work) for _ in gpus]
    homes: list[set[str]] = [set() for _ in gpus]
    loads = [0.0] * len(gpus)
    for copy in range(_COPIES):
        for model in sorted(work, key=lambda one: (-work[one], one)):
            able = [
                at
                for at, home in enumerate(homes)
                if model not in home and holds(gpus[at], [(100, [*home, model])], profiles)
            ]
            if able:
                at = min(able, key=lambda one: (loads[one], one))
                homes[at].add(model)
                loads[at] += work[model]
            elif not copy:
                return [frozenset() for _ in gpus]
    return [frozenset(home) for home in homes]


def _evenness(work: Mapping[str, float], homes: Sequence[frozenset[str]]) -> float:
    """The mean work of an accelerator over the most, each model's divided by its copies."""
    copies = Counter(model for home in homes for model in home)
    loads = [sum(work[model] / copies[model] for model in home) for home in homes]
    return sum(loads) / len(loads) / max(loads) if any(loads) else 1.0


def _filled(
    demand: Sequence[Demand], sizes: Mapping[str, _LaneSize], lanes: Sequence[_Lane], gpu: Gpu
) -> float:
    """The part of an accelerator that is taken while each batch has its best company."""
    work = filled = 0.0
    for one in (one for one in demand if (one.model, sizes[one.model]) in lanes):
        beside = list(lanes)
        beside.remove((one.model, sizes[one.model]))
        sums = 1 << gpu.taken(sizes[one.model].share_pct)  # bit i: lanes that take i together
        for _, size in beside:
            sums |= sums << gpu.taken(size.share_pct)
        most = (sums & ((2 << gpu.room) - 1)).bit_length() - 1
        row_ms = sizes[one.model].row_ms * one.rows_per_s
        work, filled = work + row_ms, filled + row_ms * gpu.room / most
    return work / filled if filled else 1.0


def _overlaps(gpu: Gpu, first: Gpu) -> bool:
    alike = replace(gpu, id=first.id) == first
    return alike and Trait.SHARE_AT_LAUNCH in gpu.traits and not gpu.layouts and not gpu.walls
