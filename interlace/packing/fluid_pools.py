"""A fleet cut into pools of alike partitions, with time for as much of the rates as can be.

Rates are fluid: every pool's batches are as large as its SLOs allow, and queues are not looked at.
So the result is a proposal, and trials decide. A pool has a time that no batch exceeds, and that no
request waits before its own batch. A model that has no time for both has partitions of its own. It
may be asked for the rate in `packing.single_model_capacity` there.

Memory may not hold all models of a pool in each of its partitions. Then each model is in some
partitions that follow each other on a ring, and shares those at its ends with its neighbours. Such
a chain evens out nearly as much as if all were everywhere (Jordan and Graves, Management Science
1995).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Final, NamedTuple

import numpy as np

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Partition, Plan
from interlace.core.profile import Profiles
from interlace.core.tables import counted
from interlace.packing.batch_options import (
    BatchOptions,
    DemandArrays,
    batch_options,
    demand_arrays,
)
from interlace.packing.layouts import Layout, Pattern, layouts, shares
from interlace.packing.placement import FilledGpu, PlacementInput, partitions, place
from interlace.packing.queueing import Floats, lossy_hosts
from interlace.packing.single_model_capacity import LEAST_MARGIN, alone_rows_per_s
from interlace.packing.solver import Constraint, LinearProgram, solve
from interlace.perf.memory import needed_bytes, room_bytes
from interlace.perf.tables import Tables

#: Distinct limits on the length of batches: 64 over the number of models, but at least 4.
_LENGTHS, _LENGTHS_X_MODELS = 4, 64
#: Branch and bound ends after this number of nodes, or within this gap to the optimum.
_NODES, _GAP = 20, 0.03
#: Hosts of a pool that are kept idle: arrivals are random, and the more so the fewer host them.
_IDLE: Final = 0.2
#: A smaller rate counts as this one: no figure shall overflow.
_LEAST_ROWS_PER_S: Final = 1e-3
#: Part of the time that is none.
_NOTHING: Final = 1e-6
#: The first half of a model's rate is worth so many times the second, where not all have time.
_HALF, _FIRST = 0.5, 3.0


class _PoolKind(NamedTuple):
    """Partitions of one share: each model's rows/s if it has all the time there, and its batch.

    ``idle`` hosts of it serve nothing.
    """

    share_pct: int
    rows_per_s: Floats
    batch: Floats
    idle: float


class _Gain(NamedTuple):
    """A part of the rates of some models, ``times`` as much of each, between two limits."""

    times: Mapping[int, float]
    least: float
    most: float
    worth: float


class _Filling(NamedTuple):
    """How many hosts each pool has, the time of each model in all of them, and the layouts."""

    hosts: Sequence[int]
    busy: Floats  #: pools x models, in hosts
    layouts: Sequence[Layout]


@dataclass(frozen=True)
class FluidPools:
    """Cuts of the accelerators of a fleet, all alike, into pools for a demand at rates above 0."""

    demand: Sequence[Demand]
    fleet: Fleet
    profiles: Profiles
    current: Plan

    def plan(self, weight: Mapping[str, float]) -> Plan | None:
        """The cut with time for the largest part of all rates, each times its ``weight``.

        ``None`` if there is no time for all of them, or no memory.
        """
        times = {index: weight[one.model] for index, one in enumerate(self.demand)}
        made = self._made([_Gain(times, 1.0, inf, 1.0)])
        if made is None:
            return None
        partitions, parts, pools = made
        said = (
            f"{counted(len(self.fleet.gpus), 'accelerator')} in "
            f"{counted(pools, 'pool')} of alike partitions: "
            f"time for {parts.min():.0%} of the rates, ignoring queueing"
        )
        return Plan(partitions, notes=(said,), headroom=float(parts.min()))

    def short_plan(self) -> Plan | None:
        """A cut for rates that there is no time for: models and requests count alike.

        Maximises the sum over models of the served part of the rate, each weighted by half its part
        of all models and half its part of all requests. The first half of a rate counts three times
        as much as the second, so that fewer models get nothing. What is not served is the plan's
        ``unserved_rows_per_s``. ``None`` if memory does not hold the cut.
        """
        rates = [one.rows_per_s for one in self.demand]
        gains = []
        for index, rate in enumerate(rates):
            worth = 1.0 / len(rates) + rate / max(sum(rates), _LEAST_ROWS_PER_S)
            gains.append(_Gain({index: 1.0}, 0.0, _HALF, _FIRST * worth))
            gains.append(_Gain({index: 1.0}, 0.0, 1.0 - _HALF, worth))
        made = self._made(gains)
        if made is None:
            return None
        partitions, parts, _ = made
        each = zip(self.demand, rates, parts.tolist(), strict=True)
        left = {one.model: rate * (1.0 - part) for one, rate, part in each if part < 1.0 - _NOTHING}
        return Plan(partitions, left, dict.fromkeys(left, "the accelerators are full"))

    def _made(self, gains: Sequence[_Gain]) -> tuple[tuple[Partition, ...], Floats, int] | None:
        """Partitions of the best cut, the part of each rate that has time, how many pools."""
        filling = self._filled(gains)
        if filling is None or (homes := self._placed(filling)) is None:
            return None
        rates = np.array([one.rows_per_s for one in self.demand])
        pace = np.array([pool.rows_per_s for pool in self._pools])
        parts = (pace * filling.busy).sum(axis=0) / np.maximum(rates, _LEAST_ROWS_PER_S)
        served = (rates * np.minimum(parts, 1.0)).tolist()
        pools = sum(hosts > 0 for hosts in filling.hosts)
        return partitions(homes, self.demand, served, self.current), parts, pools

    def _placed(self, filling: _Filling) -> list[FilledGpu] | None:
        """The pools on accelerators, each model in as many hosts as memory allows."""
        known = PlacementInput(self.demand, self.profiles, self.current)

        def placed(more: int) -> list[FilledGpu] | None:
            chosen = Counter(self._patterns(filling, more))
            homes, lost = place(chosen, self.fleet.gpus, filling.layouts, known)
            return None if lost else homes

        most = max(filling.hosts, default=0)  # none where nothing is asked for
        if (found := placed(most)) is not None:
            return found
        # What fits with more copies fits with fewer.
        fewer = bisect_left(range(most), True, key=lambda by: placed(most - 1 - by) is not None)
        return placed(most - 1 - fewer) if fewer < most else None

    def _patterns(self, filling: _Filling, more: int) -> Iterator[Pattern]:
        """Each host of each pool, its busiest model first; a model is in ``more`` than it needs."""
        for pool, hosts, busy in zip(self._pools, filling.hosts, filling.busy, strict=True):
            models = [m for m in np.argsort(-busy, kind="stable").tolist() if busy[m] > _NOTHING]
            arcs = hosts / max(busy.sum(), _NOTHING) * busy[models]
            ends = np.cumsum(arcs)
            first, last = np.floor(ends - arcs + _NOTHING), np.ceil(ends - _NOTHING) + more
            homes = {
                m: {at % hosts for at in range(int(begin), int(end))}
                for m, begin, end in zip(models, first, last, strict=True)
            }
            rates = {m: float(pool.rows_per_s[m] * busy[m] / len(homes[m])) for m in models}
            for host in range(hosts):
                turns = tuple((m, int(pool.batch[m])) for m in models if host in homes[m])
                if turns:
                    yield Pattern(pool.share_pct, turns, tuple(rates[m] for m, _ in turns))

    def _filled(self, gains: Sequence[_Gain]) -> _Filling | None:
        """The optimum, an integer for each pool and each layout; ``None`` without the least."""
        pools, shapes = self._pools, self._layouts
        if not pools:
            return None
        able = [(p, m) for p, one in enumerate(pools) for m in one.rows_per_s.nonzero()[0].tolist()]
        found = solve(self._program(able, gains), nodes=_NODES, gap=_GAP)
        if not found.feasible:
            return None
        busy = np.zeros((len(pools), len(self.demand)))
        for (pool, model), value in zip(able, found.values[: len(able)], strict=True):
            busy[pool, model] = value
        whole = [round(value) for value in found.values[len(able) :]]
        chosen = zip(shapes, whole[len(pools) : len(pools) + len(shapes)], strict=True)
        layouts = [one for one, times in chosen for _ in range(times)]
        return _Filling(whole[: len(pools)], busy, layouts)

    def _program(self, able: Sequence[tuple[int, int]], gains: Sequence[_Gain]) -> LinearProgram:
        """Columns: time of each able (pool, model), hosts of each pool, accelerators of each
        layout, gains, and whether a pool is there."""
        pools, shapes = self._pools, self._layouts
        hosts, cuts = len(able), len(able) + len(pools)
        gained, gpus = cuts + len(shapes), float(len(self.fleet.gpus))
        opened = gained + len(gains)
        rows = []
        for model, one in enumerate(self.demand):
            at = [i for i, (_, m) in enumerate(able) if m == model]
            asked = max(one.rows_per_s, _LEAST_ROWS_PER_S)
            given = [pools[able[i][0]].rows_per_s[model] / asked for i in at]
            used = {gained + i: -g.times[model] for i, g in enumerate(gains) if model in g.times}
            rows.append(Constraint((*at, *used), (*given, *used.values()), 0.0, inf))
        for pool, known in enumerate(pools):
            at = [i for i, (p, _) in enumerate(able) if p == pool]
            there = hosts + pool, opened + pool
            most = gpus * max(one.count(known.share_pct) for one in shapes)
            rows.append(Constraint((*at, *there), (*[1.0] * len(at), -1.0, known.idle), -inf, 0.0))
            rows.append(Constraint(there, (1.0, -most), -inf, 0.0))
        for share in sorted({one.share_pct for one in pools}):
            at = [hosts + p for p, one in enumerate(pools) if one.share_pct == share]
            offered = {cuts + i: -float(one.count(share)) for i, one in enumerate(shapes)}
            rows.append(
                Constraint((*at, *offered), (*[1.0] * len(at), *offered.values()), -inf, 0.0)
            )
        rows.append(Constraint(tuple(range(cuts, gained)), (1.0,) * len(shapes), gpus, gpus))
        worth, none = [-gain.worth for gain in gains], [0.0] * len(pools)
        return LinearProgram(
            [*[_NOTHING] * hosts, *[0.0] * (gained - hosts), *worth, *none],
            [*[0.0] * gained, *[gain.least for gain in gains], *none],
            [*[inf] * gained, *[gain.most for gain in gains], *[1.0] * len(pools)],
            [hosts <= i < gained or i >= opened for i in range(opened + len(pools))],
            rows,
        )

    @cached_property
    def _pools(self) -> list[_PoolKind]:
        """Each share with each length of batch; with a model of its own where none is short."""
        found: list[_PoolKind] = []
        slo_ms = np.array([one.slo_ms for one in self.demand])
        for share, options in self._options.items():
            for length_ms in self._lengths_ms:
                limit_ms = np.minimum(length_ms, slo_ms - length_ms)
                usable = options.latency_ms <= limit_ms[:, None]
                pace = np.where(usable, options.rows / options.latency_ms, 0.0)
                found.append(_pool(share, options, 1000.0 * pace, _IDLE))
        together = np.any([pool.rows_per_s > 0.0 for pool in found], axis=0)
        arrays = demand_arrays(self.demand)
        for share, options in self._options.items():
            alone = np.maximum(alone_rows_per_s(options, arrays), _lossy(options, arrays))
            for model in (~together).nonzero()[0].tolist():
                own = np.where(np.arange(len(slo_ms))[:, None] == model, alone, 0.0)
                found.append(_pool(share, options, own, 0.0))
        gpu = self.fleet.gpus[0]
        most = {share: max(map(len, layouts(gpu, [share])), default=0) for share in self._options}
        useful = [pool for pool in found if pool.rows_per_s.any() and most[pool.share_pct]]
        return [pool for pool in useful if not any(_better(one, pool, most) for one in useful)]

    @cached_property
    def _lengths_ms(self) -> list[float]:
        """Halves of SLOs, evenly chosen where there are many."""
        halves = sorted({one.slo_ms / 2.0 for one in self.demand})
        most = max(_LENGTHS, _LENGTHS_X_MODELS // max(1, len(self.demand)))
        at = np.linspace(0, len(halves) - 1, min(len(halves), most)).round().astype(int)
        return [halves[i] for i in at]

    @cached_property
    def _options(self) -> Mapping[int, BatchOptions]:
        """By share; of models that the memory of such a partition holds."""
        tables, gpu = Tables(self.profiles), self.fleet.gpus[0]
        surfaces = [tables.surface(one.model) for one in self.demand]
        needed = np.array([needed_bytes([one.model], self.profiles, gpu) for one in self.demand])
        found = {}
        for share in shares(gpu, surfaces):
            held = needed <= dict(gpu.walls).get(share, room_bytes(gpu))
            each = batch_options(self.demand, surfaces, share)
            latency_ms = np.where(held[:, None], each.latency_ms, inf)
            found[share] = replace(each, latency_ms=latency_ms)
        return found

    @cached_property
    def _layouts(self) -> tuple[Layout, ...]:
        offered = sorted({pool.share_pct for pool in self._pools})
        return layouts(self.fleet.gpus[0], offered)


def _lossy(options: BatchOptions, arrays: DemandArrays) -> Floats:
    """Models x choices: each model's rate over the hosts that serve it without a queue."""
    first_ms = options.latency_ms[:, 0]
    slo_ms = arrays.slo_ms * (1.0 - LEAST_MARGIN)
    able = first_ms < slo_ms
    latency_ms = np.where(able, first_ms, 1.0)
    load = arrays.rows_per_s * latency_ms / 1000.0
    slack_ms, loss = slo_ms - latency_ms, 1.0 - arrays.attainment
    peak = np.maximum((1.0 + arrays.cv**2) / 2.0, 1.0)
    hosts = lossy_hosts(load, latency_ms, slack_ms, loss, peak)
    found = np.zeros(options.rows.shape)
    found[:, 0] = np.where(able, arrays.rows_per_s / hosts, 0.0)
    return found


def _better(one: _PoolKind, other: _PoolKind, most: Mapping[int, int]) -> bool:
    """True if an accelerator full of ``one`` serves no model less, in smaller shares, no idler."""
    if one.share_pct >= other.share_pct or one.idle > other.idle:
        return False
    whole = most[one.share_pct] * one.rows_per_s
    return bool((whole >= 100 / other.share_pct * other.rows_per_s).all())


def _pool(share_pct: int, options: BatchOptions, rows_per_s: Floats, idle: float) -> _PoolKind:
    """Each model in the batch that serves most rows."""
    at = np.arange(len(rows_per_s)), rows_per_s.argmax(axis=1)
    return _PoolKind(share_pct, rows_per_s[at], options.rows[at], idle)
