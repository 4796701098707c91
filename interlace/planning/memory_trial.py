"""More models than memory, tried in the engine: how many requests are cold, their p99."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, inf, sqrt
from typing import Final

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan, as_rate_rps
from interlace.core.profile import Profiles, quantile
from interlace.core.request import Outcome
from interlace.planning.trial import ModelTrial
from interlace.policy.base import System
from interlace.policy.cold_curve import ColdCurve
from interlace.sim.arrivals import Gamma, merge_arrivals
from interlace.sim.observers import ColdRequests
from interlace.sim.record import ServedRequest
from interlace.sim.run import simulate
from interlace.sim.scenario import Simulation

#: Requests of a trial; the first part of them fills the memory and is not counted.
_REQUESTS: Final = 8_000
_WARM_PART: Final = 0.25
#: Partitions are cut and what is worth most is brought before the first request.
_START_MS: Final = 30_000.0
_TAIL: Final = 0.99
_Z95: Final = 1.96


@dataclass(frozen=True, slots=True)
class ColdTrial:
    """What became of some requests: how many found their model cold, and how many were in time.

    Times count those without an answer as endless; ``p99_ms`` has its interval of 95 % beside it.
    """

    sent: int
    cold: int
    in_time: int
    p99_ms: float
    p99_interval_ms: tuple[float, float]

    @property
    def cold_rate(self) -> float:
        """The part that was cold; 0 if nothing was sent."""
        return self.cold / self.sent if self.sent else 0.0

    @property
    def cold_interval(self) -> tuple[float, float]:
        """Wilson's interval of the cold rate, 95 %."""
        return ModelTrial(self.sent, self.cold, 0.0).interval()

    @property
    def attainment(self) -> float:
        return self.in_time / self.sent if self.sent else 1.0

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval of the attainment, 95 %."""
        return ModelTrial(self.sent, self.in_time, 0.0).interval()


@dataclass(frozen=True, slots=True)
class MemoryTrial:
    """A trial with one size of memory: all requests, and those of each model that was asked."""

    memory_bytes: int
    every: ColdTrial
    models: Mapping[str, ColdTrial]

    def sentence(self) -> str:
        """What was seen, in words."""
        one = self.every
        low, high = one.cold_interval
        return (
            f"{self.memory_bytes / 1e6:.0f} MB, tried in the engine with {one.sent:,} random "
            f"requests: {100 * one.cold_rate:.2f} % cold ({100 * low:.2f} to {100 * high:.2f}), "
            f"p99 {_range_ms(one)}, {100 * one.attainment:.2f} % in time"
        )


def _range_ms(one: ColdTrial) -> str:
    if one.p99_ms == inf:
        return "none: more than one in a hundred has no answer"
    low_ms, high_ms = one.p99_interval_ms
    return f"{one.p99_ms:.1f} ms ({low_ms:.1f} to {high_ms:.1f})"


def try_memory(
    demand: Sequence[Demand],
    profiles: Profiles,
    fleet: Fleet,
    plan: Plan,
    system: System,
    requests: int = _REQUESTS,
    seed: int = 0,
) -> MemoryTrial:
    """The demand that has a place, played on ``fleet`` with its budgets, by a plan that stays.

    Arrivals are as in ``planning.trial``. Before them the engine brings what it finds worth most at
    the planned rates.
    """
    placed = {slot.model for part in plan.partitions for slot in part.slots}
    wanted = [one for one in demand if one.rows_per_s > 0 and one.model in placed]
    seconds = requests / sum(as_rate_rps(one.rows_per_s) for one in wanted)
    workloads = {one.model: Gamma(as_rate_rps(one.rows_per_s), one.cv) for one in wanted}
    since_ms = _START_MS + 1000.0 * _WARM_PART * seconds
    watch = ColdRequests(cold_curves(profiles, fleet, system), since_ms)
    run = Simulation(
        system,
        fleet,
        tuple(wanted),
        belief=profiles,
        truth=profiles,
        arrivals=merge_arrivals(workloads, seconds, seed),
        plan=plan,
        warm_ms=_START_MS,
        epoch_ms=inf,
    )
    served = simulate(run, [watch]).served
    return _memory_trial(
        [one for one in served if one.arrived_ms >= since_ms],
        watch.cold,
        sum(gpu.weights_bytes for gpu in fleet.gpus),
    )


def _memory_trial(
    served: Sequence[ServedRequest], cold: Mapping[str, int], memory_bytes: int
) -> MemoryTrial:
    times_ms: dict[str, list[float]] = {}
    in_time: dict[str, int] = {}
    for one in served:
        ok = one.outcome is Outcome.OK
        in_time[one.model] = in_time.get(one.model, 0) + ok
        answered = ok or one.outcome is Outcome.LATE
        took_ms = one.answered_ms - one.arrived_ms if answered else inf
        times_ms.setdefault(one.model, []).append(took_ms)
    models = {
        model: _cold_trial(cold.get(model, 0), in_time[model], times)
        for model, times in times_ms.items()
    }
    every = [took_ms for times in times_ms.values() for took_ms in times]
    return MemoryTrial(
        memory_bytes, _cold_trial(sum(cold.values()), sum(in_time.values()), every), models
    )


def _cold_trial(cold: int, in_time: int, times_ms: Sequence[float]) -> ColdTrial:
    ordered = sorted(times_ms)
    if not ordered:
        return ColdTrial(0, 0, 0, 0.0, (0.0, 0.0))
    return ColdTrial(
        len(ordered), cold, in_time, quantile(ordered, _TAIL), _quantile_interval(ordered, _TAIL)
    )


def _quantile_interval(ordered: Sequence[float], share: float) -> tuple[float, float]:
    """Of independent samples, by the ranks between which the quantile lies with 95 %."""
    count = len(ordered)
    half = _Z95 * sqrt(count * share * (1 - share))
    low, high = floor(count * share - half), ceil(count * share + half)
    return ordered[max(0, low - 1)], ordered[high - 1] if high <= count else inf


def cold_curves(profiles: Profiles, fleet: Fleet, system: System) -> Callable[[str], ColdCurve]:
    """The cold curve of a model; one for all of equal layers."""
    found: dict[object, ColdCurve] = {}
    links = fleet.gpus[0].links

    def curve_of(model: str) -> ColdCurve:
        layers = profiles[model].layers
        if layers not in found:
            found[layers] = ColdCurve(system.cold.cold_start, layers, links)
        return found[layers]

    return curve_of


def with_memory(fleet: Fleet, more_bytes: int) -> Fleet:
    """The fleet with so much more memory for weights, dealt out evenly."""
    each = more_bytes // len(fleet.gpus)
    gpus = [replace(gpu, weights_bytes=gpu.weights_bytes + each) for gpu in fleet.gpus]
    return Fleet(tuple(gpus))
