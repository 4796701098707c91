"""Models of like SLOs in pools, each of as many alike partitions as all of it needs.

Every partition of a pool hosts every model of it, so that random arrivals even out over all its
hosts and no model needs a whole number of partitions (statistical multiplexing).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from interlace.core.hardware import Gpu
from interlace.core.plan import Demand, Partition
from interlace.core.profile import Profiles
from interlace.core.tables import counted
from interlace.packing.batch_options import BatchOptions, DemandArrays, Ints
from interlace.packing.column_generation import NODES, TIME_LIMIT_S, PackingSolution
from interlace.packing.layouts import Layout, Pattern
from interlace.packing.queueing import Bools, Floats, burstiness, hosts_needed
from interlace.packing.single_model_capacity import alone_rows_per_s
from interlace.packing.solver import Constraint, LinearProgram, solve
from interlace.perf.memory import needed_bytes, room_bytes

#: Models of one pool at most; a pool of this many hosts gains little by one more model.
_MOST_MODELS: Final = 32
_ENOUGH_HOSTS: Final = 24.0
#: So many times as many before a pool that stands is cut.
_GROWN: Final = 2.0
#: How long before the nearest deadline heads begin, in parts of the pool's shortest SLO.
_AHEAD: Final = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
#: What bringing one model into one partition is worth, in accelerators: so much more a pool that
#: stands may take.
_LOAD: Final = 0.0005
#: Of the time between L(1) and the SLO, what a batch may take more than one row.
_LONGEST: Final = 0.5
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """Bytes: of each model, and what a partition of each share has for ``copies`` of activations.

    Behind walls that is a partition's own; else an accelerator's, full of such partitions.
    """

    weights: Floats
    activations: Floats
    room: Mapping[int, tuple[int, float]]  #: by share: copies, bytes

    @classmethod
    def of(
        cls, demand: Sequence[Demand], gpu: Gpu, layouts: Sequence[Layout], profiles: Profiles
    ) -> PoolMemory:
        """What there is on accelerators like ``gpu`` in those layouts."""
        walls = dict(gpu.walls)
        shares = {share for layout in layouts for share in layout}
        whole = {s: (_most(s, layouts), float(room_bytes(gpu))) for s in shares}
        one_bytes = np.array([needed_bytes([d.model], profiles, gpu) for d in demand], float)
        two_bytes = np.array([needed_bytes([d.model] * 2, profiles, gpu) for d in demand], float)
        activations = two_bytes - one_bytes
        return cls(
            one_bytes - activations,
            activations,
            {s: (1, float(walls[s])) if s in walls else whole[s] for s in shares},
        )


class HostPool(NamedTuple):
    """Models that follow each other in the order of SLOs, from place ``first``, and their hosts."""

    first: int
    models: int
    share_pct: int
    hosts: int


@dataclass(frozen=True, slots=True)
class StandingPools:
    """By model, where most of its partitions stand: in which pool, of how many hosts and share."""

    pool: Ints
    share_pct: Ints
    hosts: Ints

    @classmethod
    def of(cls, demand: Sequence[Demand], partitions: Iterable[Partition]) -> StandingPools:
        """Those of a plan; a model that stands nowhere is in a pool of no hosts."""
        pools = Counter((frozenset(s.model for s in p.slots), p.share_pct) for p in partitions)
        index = {one.model: i for i, one in enumerate(demand)}
        found = cls(*(np.zeros(len(demand), np.int64) for _ in range(3)))
        for number, ((models, share_pct), hosts) in enumerate(pools.items(), 1):
            for at in (index[model] for model in models if model in index):
                if hosts > found.hosts[at]:
                    found.pool[at], found.share_pct[at], found.hosts[at] = number, share_pct, hosts
        return found

    def loads(self, order: Ints, share_pct: int, needed: Floats) -> Floats:
        """Models to bring into partitions for pools (first model in ``order`` x models - 1).

        One that begins with the first model of a standing pool takes its place.
        """
        pool, hosts = self.pool[order], self.hosts[order] * (self.share_pct[order] == share_pct)
        hosts[1:] *= pool[1:] != pool[:-1]
        models = np.arange(1, _MOST_MODELS + 1)
        later = np.minimum(np.arange(len(order))[:, None] + models - 1, len(order) - 1)
        same = (pool[later] == pool[:, None]).cumsum(axis=1)
        found: Floats = needed * models - np.minimum(needed, hosts[:, None]) * same
        return found


def in_pools(
    options: Mapping[int, BatchOptions],
    arrays: DemandArrays,
    layouts: Sequence[Layout],
    memory: PoolMemory,
    limit: int,
    standing: StandingPools | None = None,
) -> PackingSolution | None:
    """The pools that take least of the accelerators; then the fewest layouts that hold them.

    Pools that are ``standing`` stay for as long as what others would save is not worth the loads.
    Of a pool that needs more than ``limit`` accelerators come as many hosts as they have room for
    and one more: rates may ask for more hosts than memory can list.
    """
    order = np.argsort(arrays.slo_ms, kind="stable")
    pools = _cheapest(options, arrays, layouts, memory, order, standing)
    if pools is None:
        return None
    patterns: Counter[Pattern] = Counter()
    for pool in pools:
        models = order[pool.first : pool.first + pool.models]
        pattern = _pattern(options[pool.share_pct], arrays, np.sort(models), pool.hosts)
        patterns[pattern] += min(pool.hosts, limit * _most(pool.share_pct, layouts) + 1)
    return joined(patterns, tuple(options), layouts)


def _cheapest(
    options: Mapping[int, BatchOptions],
    arrays: DemandArrays,
    layouts: Sequence[Layout],
    memory: PoolMemory,
    order: Ints,
    standing: StandingPools | None,
) -> list[HostPool] | None:
    """Models in order of SLO cut into pools so that all cost least: a shortest path.

    ``None`` if some model is served by no share of any layout.
    """
    count = len(order)
    cost = np.full((count, _MOST_MODELS), np.inf)
    share = np.zeros(cost.shape, np.int64)
    hosts = np.zeros(cost.shape)
    offered = {share_pct for layout in layouts for share_pct in layout}
    for share_pct, one in options.items():
        if share_pct not in offered:
            continue
        price = 1.0 / _most(share_pct, layouts)
        enough = _ENOUGH_HOSTS if standing is None else _GROWN * _ENOUGH_HOSTS
        needed = _PoolModels(one, arrays, memory, order).hosts(enough)
        needed = np.maximum(np.ceil(needed - _ROUNDING), 1.0)
        priced = needed * price
        if standing is not None:
            priced += _LOAD * standing.loads(order, share_pct, needed)
        better = priced < cost
        cost[better], share[better] = priced[better], share_pct
        hosts[better] = needed[better]
    best, width = np.full(count + 1, np.inf), np.zeros(count + 1, np.int64)
    best[0] = 0.0
    for last in range(1, count + 1):
        firsts = np.arange(last - 1, max(-1, last - 1 - _MOST_MODELS), -1)
        total = best[firsts] + cost[firsts, last - 1 - firsts]
        width[last] = 1 + total.argmin()
        best[last] = total.min()
    if not np.isfinite(best[count]):
        return None
    pools, last = [], count
    while last > 0:
        models = int(width[last])
        last -= models
        at = last, models - 1
        pools.append(HostPool(last, models, int(share[at]), int(hosts[at])))
    return pools[::-1]


def _most(share_pct: int, layouts: Sequence[Layout]) -> int:
    """Partitions of a share that an accelerator has at most."""
    return max((layout.count(share_pct) for layout in layouts), default=1)


def _short(own_ms: Floats, slo_ms: Floats) -> Bools:
    """Batches (models x choices) that leave time for others, and to wait for a host."""
    first_ms = own_ms[:, :1]
    with np.errstate(invalid="ignore"):
        short: Bools = own_ms <= first_ms + _LONGEST * (slo_ms[:, None] - first_ms)
    return short


class _PoolModels:
    """Models in order of SLO at one share: the hosts that each run of them needs."""

    def __init__(
        self, options: BatchOptions, arrays: DemandArrays, memory: PoolMemory, order: Ints
    ) -> None:
        self._own_ms, self._rows = options.latency_ms[order], options.rows[order]
        self._slo_ms, self._loss = arrays.slo_ms[order], arrays.loss[order]
        self._rows_per_ms = arrays.rows_per_s[order] / 1000.0
        short = _short(self._own_ms, self._slo_ms)
        self._work_ms = np.where(short, self._own_ms / self._rows, np.inf)
        self._bursts = burstiness(arrays.cv[order])
        self._options, self._arrays, self._order = options, arrays, order
        copies, self._room = memory.room[options.share_pct]
        self._held = memory.weights[order] + copies * memory.activations[order]

    def hosts(self, enough: float) -> Floats:
        """By (first model, models - 1); infinite where the share or its memory do not serve them.

        One model alone has partitions of its own, in which batches wait to be full.
        """
        found = np.full((len(self._slo_ms), _MOST_MODELS), np.inf)
        for part in _AHEAD:
            self._add(found, part, enough)
        alone = alone_rows_per_s(self._options, self._arrays)[self._order].max(axis=1)
        with np.errstate(divide="ignore"):
            found[:, 0] = self._rows_per_ms * 1000.0 / alone
        return found

    def together(self) -> float:
        """Those of all models, several, whatever memory they need."""
        every, found = np.arange(len(self._slo_ms)), np.inf
        for part in _AHEAD:
            ahead_ms = np.full(len(every), part * self._slo_ms[0])
            rate, work_ms, own_ms = self._turns(every, ahead_ms)
            longest_ms = own_ms.max()
            needed = hosts_needed(
                (rate * work_ms).sum(),
                (rate * work_ms**2 * self._bursts).sum(),
                longest_ms,
                ahead_ms[0] - longest_ms,
                self._loss.min(),
            )
            found = min(found, float(needed))
        return found

    def _turns(self, model: Ints, ahead_ms: Floats) -> tuple[Floats, Floats, Floats]:
        """Rows in a ms, the work of a row and the length of a batch, in the best that gathers."""
        rate, own_ms = self._rows_per_ms[model], self._own_ms[model]
        gathered = 1.0 + rate * np.maximum(self._slo_ms[model] - ahead_ms, 0.0)
        usable = (self._rows[model] <= gathered[:, None]) & (own_ms <= ahead_ms[:, None])
        work_ms = np.where(usable, self._work_ms[model], np.inf)
        at = np.arange(len(model)), work_ms.argmin(axis=1)
        return rate, work_ms[at], own_ms[at]

    def _add(self, found: Floats, part: float, enough: float) -> None:
        """Heads begin when their deadline is so far ahead, in parts of the shortest SLO.

        What gathers until then costs least a row in the best batch of at most that length; what
        the longest batch leaves of that time is for waiting.
        """
        first: Ints = np.arange(len(self._slo_ms))
        load, variance_ms, longest_ms, held = (np.zeros(len(first)) for _ in range(4))
        loss: Floats = np.ones(len(first))
        for more in range(_MOST_MODELS):
            model, ahead_ms = first + more, part * self._slo_ms[first]
            rate, work_ms, own_ms = self._turns(model, ahead_ms)
            load = load + rate * work_ms
            variance_ms = variance_ms + rate * work_ms**2 * self._bursts[model]
            longest_ms = np.maximum(longest_ms, own_ms)
            loss = np.minimum(loss, self._loss[model])
            held = held + self._held[model]
            needed = hosts_needed(load, variance_ms, longest_ms, ahead_ms - longest_ms, loss)
            needed = np.where(held <= self._room, needed, np.inf)
            found[first, more] = np.minimum(found[first, more], needed)
            on = (load < enough) & (held <= self._room) & (model + 1 < len(self._slo_ms))
            if not on.any():
                break
            first, loss = first[on], loss[on]
            load, variance_ms, longest_ms, held = (
                each[on] for each in (load, variance_ms, longest_ms, held)
            )


def hosts_together(options: BatchOptions, arrays: DemandArrays) -> float:
    """Partitions of that share in which these models, several, keep their promises as one queue.

    Whatever memory they need; infinite where there are none such.
    """
    order, nothing = np.argsort(arrays.slo_ms, kind="stable"), np.zeros(len(arrays.slo_ms))
    memory = PoolMemory(nothing, nothing, {options.share_pct: (1, np.inf)})
    return _PoolModels(options, arrays, memory, order).together()


def _pattern(options: BatchOptions, arrays: DemandArrays, models: Ints, hosts: int) -> Pattern:
    """One of a pool's partitions: of every model an equal part, in batches not too long."""
    own_ms = options.latency_ms[models]
    short = _short(own_ms, arrays.slo_ms[models]) if len(models) > 1 else np.isfinite(own_ms)
    batch = np.where(short, options.rows[models], 1).max(axis=1).astype(int)
    rates = arrays.rows_per_s[models] / hosts
    turns = tuple(zip(models.tolist(), batch.tolist(), strict=True))
    return Pattern(options.share_pct, turns, tuple(rates.tolist()))


def joined(
    patterns: Counter[Pattern],
    shares_pct: Sequence[int],
    layouts: Sequence[Layout],
) -> PackingSolution:
    """The fewest layouts with a partition for every pattern; without a limit, they always exist."""
    needed = Counter({s: 0 for s in shares_pct})
    for pattern, count in patterns.items():
        needed[pattern.share_pct] += count
    total = float(sum(needed.values()))
    rows = []
    for share in shares_pct:
        entry = {i: float(one.count(share)) for i, one in enumerate(layouts) if share in one}
        rows.append(
            Constraint(tuple(entry), tuple(entry.values()), float(needed[share]), float("inf"))
        )
    count = len(layouts)
    program = LinearProgram([1.0] * count, [0.0] * count, [total] * count, [True] * count, rows)
    solution = solve(program, TIME_LIMIT_S, NODES)
    counts = np.rint(np.array(solution.values)).astype(int)
    cuts = tuple(one for one, times in zip(layouts, counts, strict=True) for _ in range(times))
    said = f"{counted(len(patterns), 'pool')} of alike partitions"
    return PackingSolution(patterns, cuts, np.zeros(0), said)
