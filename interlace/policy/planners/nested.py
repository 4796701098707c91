"""Equal partitions with nested hosts: all models share all partitions unless one would be late."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import Profiles
from interlace.packing.feasibility import UNKNOWN_SHARE, feasible
from interlace.perf.latency import Surface
from interlace.perf.memory import holds
from interlace.perf.tables import Tables

_NO_PLACE: Final = "no partition has the memory left for it, or is fast enough for its SLO"


@dataclass(frozen=True, slots=True)
class _NestedLoad:
    """One model at one share: its time alone, time per row in its best batch, that batch."""

    demand: Demand
    rows_per_s: float
    alone_ms: float
    row_ms: float
    batch: int

    @property
    def work(self) -> float:
        """Accelerators kept busy by the planned rate."""
        return self.rows_per_s * self.row_ms / 1000.0


@dataclass(frozen=True, slots=True)
class _NestedLayout:
    """``homes`` are (gpu, share); ``depth[model]`` of them, from the first, host the model."""

    homes: tuple[tuple[str, int], ...]
    loads: tuple[_NestedLoad, ...]
    depth: Mapping[str, int]
    headroom: float


@dataclass(frozen=True, slots=True)
class Nested:
    """Cut every accelerator into equal partitions and let most models run in most of them.

    A model hosted by many partitions finds an idle one sooner, and bursts of one model use what
    another leaves. What limits this is blocking: a request may arrive just after a long batch of
    another model began. So for every model there must be at least one partition in which the
    longest single execution of any other, and its own, together take at most ``patience`` of its
    SLO. Long models are therefore kept to the first partitions, short ones run in all: the sets
    of hosts are nested. By Hall's condition a factor k on all rates fits if and only if, for each
    m, the models that only the first m partitions host need at most m times ``busy``.

    Among the shares that the hardware offers the layout of largest k is taken; it is the plan's
    ``headroom``. Models that no layout can place are ``unserved``, with the reason.
    """

    patience: float = 0.9
    busy: float = 0.85
    blocking: float = 0.5  #: part of a neighbour's SLO that a batch of several rows may take

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        tables = Tables(profiles)
        # A rate of zero is an unknown one here, not nothing.
        rated = [replace(one, rows_per_s=1.0) if one.rows_per_s == 0 else one for one in demand]
        asked = feasible(rated, fleet, tables, waits=0.0)
        sound = {one.model for one in asked.wanted}
        plan = self._widest([one for one in demand if one.model in sound], fleet, tables)
        refused = {d.model: max(0.0, d.rows_per_s) for d in demand if d.model in asked.reasons}
        return replace(
            plan,
            unserved_rows_per_s={**refused, **plan.unserved_rows_per_s},
            reasons={**asked.reasons, **plan.reasons},
        )

    def _widest(self, demand: Sequence[Demand], fleet: Fleet, tables: Tables) -> Plan:
        surfaces = {one.model: tables.surface(one.model) for one in demand}
        best: _NestedLayout | None = None
        for share_pct in sorted({s for gpu in fleet.gpus for s in gpu.shares_pct}):
            layout = self._layout(share_pct, demand, fleet, tables.profiles, surfaces)
            if layout is not None and (best is None or _rank(layout) > _rank(best)):
                best = layout
        if best is None:
            reason = "no accelerator" if not fleet.gpus else "no model meets its SLO on any share"
            unserved = {one.model: one.rows_per_s for one in demand}
            return Plan((), unserved, dict.fromkeys(unserved, reason))
        return self._plan(best, demand, surfaces)

    def _layout(
        self,
        share_pct: int,
        demand: Sequence[Demand],
        fleet: Fleet,
        profiles: Profiles,
        surfaces: Mapping[str, Surface],
    ) -> _NestedLayout | None:
        """The layout of equal partitions of that share; ``None`` if it serves no model."""
        able = [gpu for gpu in fleet.gpus if share_pct in gpu.shares_pct]
        # By round, not by accelerator: the first partitions, with the long models, spread out.
        homes = tuple(
            (gpu.id, share_pct)
            for count in range(1, 100 // share_pct + 1)
            for gpu in able
            if gpu.legal([share_pct] * count)
        )
        loads = [
            load
            for one in demand
            if (load := _load(one, surfaces[one.model], share_pct)) is not None
        ]
        if not homes or (demand and not loads):
            return None
        loads.sort(key=lambda load: (-load.alone_ms, load.demand.model))
        depth = self._depths(loads, len(homes))
        kept = _within_memory(loads, depth, homes, fleet, profiles)
        return _NestedLayout(homes, kept, depth, self._headroom(kept, depth, len(homes)))

    def _depths(self, loads: Sequence[_NestedLoad], count: int) -> dict[str, int]:
        """Partitions per model, the longest first: all, less what tighter models need kept free."""
        depth = {load.demand.model: count for load in loads}
        for tight in sorted(loads, key=lambda load: load.demand.slo_ms):
            limit_ms = self.patience * tight.demand.slo_ms - tight.alone_ms
            for blocker in loads:
                if blocker.alone_ms <= limit_ms:
                    break
                if blocker is not tight:
                    # One partition fewer than the tight model has, but never none.
                    most = max(1, depth[tight.demand.model] - 1)
                    depth[blocker.demand.model] = min(depth[blocker.demand.model], most)
        return _ordered(loads, depth)

    def _headroom(
        self, loads: Sequence[_NestedLoad], depth: Mapping[str, int], count: int
    ) -> float:
        """The largest factor on every rate that fits (Hall's condition on nested hosts)."""
        factors = [
            self.busy * m / work
            for m in range(1, count + 1)
            if (work := sum(x.work for x in loads if depth[x.demand.model] <= m)) > 0
        ]
        return min(factors, default=inf)

    def _plan(
        self, layout: _NestedLayout, demand: Sequence[Demand], surfaces: Mapping[str, Surface]
    ) -> Plan:
        partitions = tuple(
            Partition(f"{gpu}:{index}", gpu, share_pct, slots)
            for index, (gpu, share_pct) in enumerate(layout.homes)
            if (slots := self._slots(layout, index, share_pct, surfaces))
        )
        placed = {load.demand.model for load in layout.loads}
        short = min(1.0, layout.headroom)
        unserved = {x.demand.model: x.rows_per_s * (1 - short) for x in layout.loads if short < 1}
        reasons = dict.fromkeys(unserved, "the accelerators are full")
        for one in demand:
            if one.model not in placed:
                unserved[one.model] = one.rows_per_s
                reasons[one.model] = _NO_PLACE
        return Plan(partitions, unserved, reasons, headroom=layout.headroom)

    def _slots(
        self, layout: _NestedLayout, index: int, share_pct: int, surfaces: Mapping[str, Surface]
    ) -> tuple[Slot, ...]:
        here = [load for load in layout.loads if layout.depth[load.demand.model] > index]
        blocked = sorted(
            (self.blocking * load.demand.slo_ms - load.alone_ms, place)
            for place, load in enumerate(here)
        )
        slots = []
        for place, load in enumerate(here):
            model = load.demand.model
            limit_ms = _batch_limit_ms(load.alone_ms, place, blocked)
            batch = surfaces[model].largest_batch(limit_ms, share_pct, load.batch)
            rows_per_s = load.rows_per_s * layout.headroom / layout.depth[model]
            slots.append(Slot(model, max(1, batch), rows_per_s))
        return tuple(slots)


def _batch_limit_ms(alone_ms: float, place: int, blocked: Sequence[tuple[float, int]]) -> float:
    """How long a batch of one model may block the others; ``blocked`` has the limit of each.

    Models that even one row blocks have other hosts.
    """
    first = bisect_left(blocked, (alone_ms, -1))
    return next((ms for ms, other in blocked[first : first + 2] if other != place), inf)


def _rank(layout: _NestedLayout) -> tuple[int, float, int]:
    """More models first, then more headroom, then larger partitions."""
    return (len(layout.loads), layout.headroom, layout.homes[0][1])


def _load(one: Demand, latency: Surface, share_pct: int) -> _NestedLoad | None:
    """A model's load at a share; ``None`` if not even one row meets its SLO there."""
    try:
        alone_ms = latency.latency_ms(1, share_pct)
    except ValueError:
        return None
    if alone_ms > one.slo_ms:
        return None
    batch = max(1, latency.best_batch(one.slo_ms / 2.0, share_pct, one.max_batch))
    row_ms = latency.latency_ms(batch, share_pct) / batch
    whole_ms = latency.latency_ms(1, 100)
    rows_per_s = one.rows_per_s if one.rows_per_s > 0 else 1000.0 * UNKNOWN_SHARE / whole_ms
    return _NestedLoad(one, rows_per_s, alone_ms, row_ms, batch)


def _ordered(loads: Sequence[_NestedLoad], depth: dict[str, int]) -> dict[str, int]:
    """Nested in order of length: a shorter model is hosted wherever a longer one is."""
    deepest = 1
    for load in loads:
        deepest = depth[load.demand.model] = max(depth[load.demand.model], deepest)
    return depth


def _within_memory(
    loads: Sequence[_NestedLoad],
    depth: dict[str, int],
    homes: Sequence[tuple[str, int]],
    fleet: Fleet,
    profiles: Profiles,
) -> tuple[_NestedLoad, ...]:
    """The loads that memory holds; a model gives up partitions before it is left out."""
    kept: list[_NestedLoad] = []
    whole = [
        (gpu, (share, [one.demand.model for one in loads if depth[one.demand.model] > place]))
        for place, (gpu, share) in enumerate(homes)
    ]
    if all(
        holds(gpu, [held for where, held in whole if where == gpu.id], profiles)
        for gpu in fleet.gpus
    ):
        return tuple(loads)
    held: list[tuple[str, int, list[str]]] = [(gpu, share, []) for gpu, share in homes]
    for load in loads:
        model = load.demand.model
        fits = 0
        for gpu, _, models in held[: depth[model]]:
            models.append(model)
            if not holds(fleet.gpu(gpu), [h[1:] for h in held if h[0] == gpu], profiles):
                models.pop()
                break
            fits += 1
        depth[model] = fits
        if fits:
            kept.append(load)
    return tuple(kept)
