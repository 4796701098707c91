"""Elastic partitioning: the planner of gpulet (section 4.3, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import Profiles
from interlace.perf.duty import DutyCycle, Turn, fit, saturated_rps, turn
from interlace.perf.interference import ConstantFactor, Interference, Runner
from interlace.perf.latency import surface
from interlace.perf.memory import needed_bytes

#: Rates below this are served: a thousandth of a request per second is rounding.
_NOTHING_RPS = 1e-3
_HALVINGS = 12
_UNDISTURBED: Final = ConstantFactor(1.0)


@dataclass(slots=True)
class _Glet:
    """A share of one accelerator while the plan is being made; empty until it has turns."""

    gpu: str
    share_pct: int
    turns: list[Turn] = field(default_factory=list)
    cycle: DutyCycle | None = None


@dataclass(frozen=True, slots=True)
class Gpulet:
    """Algorithm 1. ``glets_per_gpu`` is two in the paper; 0 is no bound.

    Where the paper is silent: a model that fits no empty glet whole is merged into a shared one at
    the highest rate that fits, and what is then left is unserved.
    """

    interference: Interference = _UNDISTURBED
    glets_per_gpu: int = 2

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        search = _Search(self, fleet, profiles)
        unserved: dict[str, float] = {}
        reasons: dict[str, str] = {}
        for one in sorted(demand, key=lambda d: (d.rate_rps * d.slo_ms, d.model)):  # line 2
            left_rps = search.place(one)
            if left_rps > _NOTHING_RPS:
                unserved[one.model] = left_rps
                reasons[one.model] = search.why(one)
        return Plan(search.partitions(), unserved, reasons)


class _Search:
    """The remaining and the allocated glets of one run of Algorithm 1."""

    def __init__(self, policy: Gpulet, fleet: Fleet, profiles: Profiles) -> None:
        self._policy = policy
        self._fleet = fleet
        self._profiles = profiles
        self._remaining = [_Glet(gpu.id, 100) for gpu in fleet.gpus]
        self._allocated: list[_Glet] = []
        self._alone: dict[tuple[str, int], Turn] = {}

    def place(self, demand: Demand) -> float:
        """Allocate glets for a model until its rate is met or nothing fits; the rate left over."""
        left_rps = demand.rate_rps
        while left_rps > _NOTHING_RPS:  # line 4
            ideal_pct = self._ideal_share(demand, left_rps)
            if ideal_pct is None:
                break
            placed_rps = self._merge(demand, left_rps, ideal_pct)
            placed_rps = placed_rps or self._best_fit(demand, left_rps, ideal_pct)
            placed_rps = placed_rps or self._squeeze(demand, left_rps)
            if not placed_rps:
                break
            left_rps -= placed_rps
        return left_rps

    def why(self, demand: Demand) -> str:
        """Why part of a model's rate is unserved, in words."""
        alone_ms = self._turn(demand, 1.0, 100).latency_ms[1]
        if 2.0 * alone_ms > demand.slo_ms:
            return (
                f"one row alone takes {alone_ms:.1f} ms on a whole accelerator; under load it may "
                f"wait as long again, and the SLO is {demand.slo_ms:g} ms"
            )
        return "every partition that could hold it is full"

    def partitions(self) -> tuple[Partition, ...]:
        """The allocated glets as partitions."""
        return tuple(_partition(i, glet) for i, glet in enumerate(self._allocated))

    def _ideal_share(self, demand: Demand, rate_rps: float) -> int | None:
        """min(p_eff, p_req), lines 6 to 8; ``None`` if no share meets the SLO at all."""
        shares = sorted({share for gpu in self._fleet.gpus for share in gpu.shares_pct})
        rates = {share: saturated_rps(self._turn(demand, 1.0, share)) for share in shares}
        usable = [share for share in shares if rates[share] > 0]
        if not usable:
            return None
        best_pct = max(usable, key=lambda s: (rates[s] / rates[usable[-1]] - s / 100, -s))
        needed = [s for s in usable if fit([self._turn(demand, rate_rps, s)])]
        return max(min(best_pct, *needed[:1], 100), usable[0])

    def _merge(self, demand: Demand, rate_rps: float, ideal_pct: int) -> float:
        """Share an allocated glet in time (line 22): its duty cycle must take the whole rate."""
        for glet in sorted(self._allocated, key=lambda g: (g.share_pct, g.gpu)):
            if glet.share_pct < ideal_pct or not self._fits_memory(glet, demand.model):
                continue
            if self._add(glet, demand, rate_rps):
                return rate_rps
        return 0.0

    def _best_fit(self, demand: Demand, rate_rps: float, ideal_pct: int) -> float:
        """The smallest empty glet that is large enough, split if it can be (lines 14 to 26)."""
        for glet in sorted(self._remaining, key=lambda g: (g.share_pct, g.gpu)):
            if glet.share_pct < ideal_pct or not self._fits_memory(glet, demand.model):
                continue
            share_pct = self._split_share(glet, ideal_pct)
            most_rps = saturated_rps(self._turn(demand, 1.0, share_pct))
            placed_rps = min(rate_rps, most_rps)
            taken = _Glet(glet.gpu, share_pct)
            if not placed_rps or not self._add(taken, demand, placed_rps):
                continue
            self._take(glet, taken)
            return placed_rps
        return 0.0

    def _squeeze(self, demand: Demand, rate_rps: float) -> float:
        """Nothing takes the whole rate: the highest part of it that a shared glet takes."""
        low_rps, high_rps = 0.0, rate_rps
        for _ in range(_HALVINGS):
            middle_rps = (low_rps + high_rps) / 2
            if any(self._would_fit(glet, demand, middle_rps) for glet in self._allocated):
                low_rps = middle_rps
            else:
                high_rps = middle_rps
        for glet in self._allocated:
            if low_rps > _NOTHING_RPS and self._would_fit(glet, demand, low_rps):
                self._add(glet, demand, low_rps)
                return low_rps
        return 0.0

    def _split_share(self, glet: _Glet, ideal_pct: int) -> int:
        shares = self._fleet.gpu(glet.gpu).shares_pct
        legal = [share for share in shares if ideal_pct <= share <= glet.share_pct]
        on_gpu = sum(1 for g in self._allocated if g.gpu == glet.gpu)
        bound = self._policy.glets_per_gpu
        last = bound and on_gpu + 1 >= bound
        return legal[-1] if last or not legal else legal[0]

    def _take(self, glet: _Glet, taken: _Glet) -> None:
        self._remaining.remove(glet)
        self._allocated.append(taken)
        shares = self._fleet.gpu(glet.gpu).shares_pct
        rest = [share for share in shares if share <= glet.share_pct - taken.share_pct]
        if rest:
            self._remaining.append(_Glet(glet.gpu, rest[-1]))

    def _would_fit(self, glet: _Glet, demand: Demand, rate_rps: float) -> bool:
        return (
            self._fits_memory(glet, demand.model)
            and self._joined(glet, demand, rate_rps)[1] is not None
        )

    def _add(self, glet: _Glet, demand: Demand, rate_rps: float) -> bool:
        turns, cycle = self._joined(glet, demand, rate_rps)
        if cycle is None:
            return False
        glet.turns, glet.cycle = turns, cycle
        return True

    def _joined(
        self, glet: _Glet, demand: Demand, rate_rps: float
    ) -> tuple[list[Turn], DutyCycle | None]:
        """The glet's turns with this rate added, and the cycle that serves them if there is one."""
        others = [t for t in glet.turns if t.model != demand.model]
        before_rps = sum(t.rate_rps for t in glet.turns if t.model == demand.model)
        turns = [*others, self._turn(demand, before_rps + rate_rps, glet.share_pct)]
        return turns, fit(turns)

    def _turn(self, demand: Demand, rate_rps: float, share_pct: int) -> Turn:
        key = (demand.model, share_pct)
        if key not in self._alone:
            runner = Runner(demand.model, demand.max_batch, share_pct)
            neighbours = [runner] if share_pct < 100 else []
            self._alone[key] = turn(
                demand,
                surface(self._profiles[demand.model]),
                share_pct,
                self._policy.interference(runner, neighbours),
            )
        return replace(self._alone[key], rate_rps=rate_rps)

    def _fits_memory(self, glet: _Glet, model: str) -> bool:
        here = [t.model for g in self._allocated if g.gpu == glet.gpu for t in g.turns]
        if model not in (t.model for t in glet.turns):
            here.append(model)
        return needed_bytes(here, self._profiles) <= self._fleet.gpu(glet.gpu).memory_bytes


def _partition(index: int, glet: _Glet) -> Partition:
    assert glet.cycle is not None  # a glet is allocated only with a cycle
    slots = tuple(
        Slot(t.model, batch, t.rate_rps)
        for t, batch in zip(glet.turns, glet.cycle.batches, strict=True)
    )
    blank = Partition(f"{glet.gpu}:{index}", glet.gpu, glet.share_pct)
    return replace(blank, slots=slots, duty_ms=glet.cycle.duty_ms)
