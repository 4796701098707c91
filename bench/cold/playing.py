"""One run of the engine with more models than memory, and what cold starts cost in it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Annotated, Final, NamedTuple

from bench.harness import percentile, spread
from interlace.core.hardware import Fleet
from interlace.core.messages import Command, Event, Fetch
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import Profile
from interlace.core.request import Outcome
from interlace.planning.memory_trial import cold_curves
from interlace.policy.base import System
from interlace.policy.catalog import CATALOG
from interlace.policy.cold_starts.catalog import COLD_POLICIES
from interlace.sim.arrivals import Arrivals, Gamma, Workload, merge_arrivals
from interlace.sim.observers import ColdRequests
from interlace.sim.run import simulate
from interlace.sim.scenario import Simulation

#: Requests of the first part of a run fill the memory and are not counted.
_WARM_PART: Final = 0.25
#: Partitions are cut, models loaded, the hottest fetched.
_START_MS: Final = 5_000.0

Seeds = Annotated[int, "runs, each with arrivals of its own"]


class ColdFigures(NamedTuple):
    """Of one run, its first part left out.

    ``times_ms`` are ascending, of requests that were answered, ``sent`` are all; ``cold`` found no
    accelerator warm, ``late`` were not answered, or past their SLO. ``link_part`` is what copies
    take on an idle link over the time that passed.
    """

    times_ms: list[float]
    sent: int
    cold: int
    late: frozenset[tuple[str, float]]
    fetches: int
    moved_bytes: int
    link_part: float

    @property
    def p50_ms(self) -> float:
        return percentile(self.times_ms, 50) or 0.0

    @property
    def p99_ms(self) -> float:
        return percentile(self.times_ms, 99) or 0.0

    @property
    def in_slo(self) -> float:
        return 1.0 - len(self.late) / self.sent

    @property
    def cold_part(self) -> float:
        return self.cold / self.sent

    def within(self, limit_ms: float) -> float:
        """The part of all requests that was answered within so long."""
        return bisect_right(self.times_ms, limit_ms) / self.sent


@dataclass(slots=True)
class FetchWatch:
    """An observer that adds up what is copied after a time."""

    profiles: Mapping[str, Profile]
    from_ms: float
    fetches: int = 0
    moved_bytes: int = 0
    copy_ms: float = 0.0

    def __call__(self, now_ms: float, event: Event, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, Fetch) and now_ms >= self.from_ms:
                layers = self.profiles[command.model].layers
                brought = [layers[index] for index in command.plan.brought]
                self.fetches += 1
                self.moved_bytes += sum(layer.weights_bytes for layer in brought)
                self.copy_ms += sum(layer.copy_ms for layer in brought)


def zipf_parts(count: int, skew: float) -> list[float]:
    """The parts of a whole by Zipf's law."""
    weights = [(place + 1) ** -skew for place in range(count)]
    return [weight / sum(weights) for weight in weights]


def poisson(rates_rps: Mapping[str, float], seconds: float, seed: int) -> Arrivals:
    """Independent arrivals at these rates."""
    workloads: dict[str, Workload] = {name: Gamma(rate) for name, rate in rates_rps.items()}
    return merge_arrivals(workloads, seconds, seed)


def with_cold(name: str, system: str = "interlace") -> System:
    """A system's row with an answer to cold starts."""
    return replace(CATALOG[system], cold=COLD_POLICIES[name])


def cold_run(
    system: System,
    fleet: Fleet,
    profiles: Mapping[str, Profile],
    arrivals: Arrivals,
    slo_ms: float,
    rates_rps: Mapping[str, float] | None = None,
    *,
    warm_part: float = _WARM_PART,
    batch: int = 8,
) -> ColdFigures:
    """Whole accelerators, each model on one of them in turn; ``rates_rps`` is what is planned."""
    planned = rates_rps or dict.fromkeys(profiles, 0.0)
    demand = [Demand(name, planned[name], slo_ms, batch) for name in profiles]
    length_ms = arrivals.seconds * 1000.0
    watch = FetchWatch(profiles, _START_MS + warm_part * length_ms)
    cold = ColdRequests(cold_curves(profiles, fleet, system), watch.from_ms)
    scenario = Simulation(
        system,
        fleet,
        tuple(demand),
        profiles,
        profiles,
        arrivals,
        in_turn(fleet, demand),
        warm_ms=_START_MS,
        epoch_ms=inf,
    )
    record = simulate(scenario, [watch, cold])
    counted = [one for one in record.served if one.arrived_ms >= watch.from_ms]
    answered = (Outcome.OK, Outcome.LATE)
    times = [one.answered_ms - one.arrived_ms for one in counted if one.outcome in answered]
    late = [one for one in counted if one.outcome is not Outcome.OK]
    passed_ms = (1 - warm_part) * length_ms
    return ColdFigures(
        sorted(times),
        len(counted),
        sum(cold.cold.values()),
        frozenset((one.model, round(one.arrived_ms, 6)) for one in late),
        watch.fetches,
        watch.moved_bytes,
        watch.copy_ms / passed_ms,
    )


def in_turn(fleet: Fleet, demand: Sequence[Demand]) -> Plan:
    """Each accelerator whole, every model on one of them."""
    count = len(fleet.gpus)
    return Plan(
        tuple(
            Partition(
                f"{gpu.id}-whole",
                gpu.id,
                100,
                tuple(
                    Slot(one.model, one.max_batch, one.rows_per_s) for one in demand[place::count]
                ),
            )
            for place, gpu in enumerate(fleet.gpus)
        )
    )


def told(values: Sequence[float], words: str) -> tuple[str, float]:
    """The median of several runs, the least and the greatest in its words."""
    found = spread(values)
    assert found is not None
    return f"{words} ({found.least:.3g}-{found.greatest:.3g})", found.median
