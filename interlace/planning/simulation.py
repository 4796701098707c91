"""One system on one trace: the fleet it gets, its plan, the run, its figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from interlace import __version__
from interlace.core.gpu_kinds import uniform_fleet
from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Partition, Plan, as_rate_rps
from interlace.core.profile import Profile
from interlace.core.user_errors import InputError
from interlace.device.simulated.boards import physics_of
from interlace.device.simulated.device import device_factory
from interlace.device.simulated.physics import Physics
from interlace.packing.bounds import LowerBound, lower_bound
from interlace.perf.interference import ConstantFactor
from interlace.planning.plan_file import load_fleet_plan
from interlace.planning.scenario import Scenario as Question
from interlace.policy.base import System
from interlace.policy.fewest import fewest
from interlace.runtime.log import LogHeader, LogWriter
from interlace.sim.arrivals import Arrivals, Workload, merge_arrivals
from interlace.sim.record import RunRecord
from interlace.sim.report import Report, report
from interlace.sim.run import simulate
from interlace.sim.scenario import Simulation
from interlace.sim.workload.files import TraceError
from interlace.sim.workload.parse import WorkloadError, workload


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """What is simulated: for how long, at which load, on how many accelerators (``None``: the
    fewest that the system plans for), with or without jitter."""

    seconds: float
    load: float
    seed: int
    gpus: int | None = None
    plan: Path | None = None  #: a file of ``interlace plan --save``, instead of planning
    jitter: bool = False


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """A system's run and its figures."""

    system: str
    settings: SimulationSettings
    fleet: Fleet
    plan: Plan
    record: RunRecord
    report: Report
    bound: LowerBound

    @property
    def gpus(self) -> int:
        """Accelerators that the plan uses."""
        return len({partition.gpu for partition in self.plan.partitions})

    @property
    def highest_load(self) -> float:
        """No scheduler keeps every SLO on these accelerators above this load."""
        needed = max(self.bound.area.accelerators, self.bound.configuration.accelerators)
        return self.settings.load * len(self.fleet.gpus) / needed if needed else float("inf")


def trace(question: Question, folder: Path, settings: SimulationSettings) -> Arrivals:
    """The scenario's arrivals: a load above 1 plays its workloads so many times faster.

    Raises:
        InputError: a model's workload is none.
    """
    workloads: dict[str, Workload] = {}
    for one in question.demand:
        table = question.workloads.get(one.model, {})
        try:
            rate_rps = as_rate_rps(one.rows_per_s)
            workloads[one.model] = workload(table, one.model, rate_rps, one.cv, folder)
        except WorkloadError as error:
            raise InputError(f"models.{one.model}.workload.{error}") from None
        except TraceError as error:
            raise InputError(f"models.{one.model}.workload: {error}") from None
    made = merge_arrivals(workloads, settings.seconds * settings.load, settings.seed)
    return Arrivals(made.models, made.times_ms / settings.load, made.which, settings.seconds)


def planned(question: Question, system: System, settings: SimulationSettings) -> tuple[Fleet, Plan]:
    """The fewest accelerators by the system's packer, or its planner's cut of a fixed number.

    Where a system's partitions overlap, its planner cuts as many as its packer needs. Plans are
    made for the scenario's rates times the load.
    """
    demand = _at_load(question, settings)
    if settings.plan is not None:
        there, partitions = load_fleet_plan(
            settings.plan, question.gpu, system.name.partition("+")[0]
        )
        return there, Plan(partitions, overlapping=_overlap(partitions, there))
    if settings.gpus is not None:
        whole = uniform_fleet(question.gpu, settings.gpus)
        return whole, system.planner(demand, whole, question.profiles, Plan())
    plan, largest = fewest(system.packer, demand, question.gpu, question.limit, question.profiles)
    used = {partition.gpu for partition in plan.partitions}
    few = Fleet(tuple(gpu for gpu in largest.gpus if gpu.id in used) or largest.gpus[:1])
    cut = system.planner(demand, few, question.profiles, Plan())
    return few, cut if cut.overlapping or not used else plan


def _overlap(partitions: Sequence[Partition], there: Fleet) -> bool:
    shares = {gpu.id: [p.share_pct for p in partitions if p.gpu == gpu.id] for gpu in there.gpus}
    return any(sum(of_one) > 100 for of_one in shares.values())


def simulate_system(
    question: Question,
    system: System,
    arrivals: Arrivals,
    settings: SimulationSettings,
    made: tuple[Fleet, Plan],
    log: Path | None = None,
    on_progress: Callable[[float], None] = lambda part: None,
) -> SimulationResult:
    """Play the trace by the plan ``made``, and report; the events are kept in ``log``.

    Raises:
        OSError: the log cannot be written.
    """
    gpus, plan = made
    scenario = Simulation(
        system,
        gpus,
        _at_load(question, settings),
        belief=question.profiles,
        truth=_truth(question),
        arrivals=arrivals,
        plan=plan,
        device=device_factory(_physics(question, settings)),
    )
    if log is None:
        record = simulate(scenario, (), on_progress)
    else:
        with closing(LogWriter(log, _header(scenario))) as writer:
            record = simulate(scenario, [writer], on_progress)
    return SimulationResult(
        system.name, settings, gpus, plan, record, report(record), _bound(question, settings)
    )


def _bound(question: Question, settings: SimulationSettings) -> LowerBound:
    """For the rates at this load, by latencies as the simulated accelerators have them."""
    return lower_bound(
        _at_load(question, settings), question.gpu, _truth(question), quantile="median_ms"
    )


def _at_load(question: Question, settings: SimulationSettings) -> tuple[Demand, ...]:
    return tuple(replace(d, rows_per_s=d.rows_per_s * settings.load) for d in question.demand)


def _header(scenario: Simulation) -> LogHeader:
    until_ms = scenario.warm_ms + scenario.arrivals.seconds * 1000.0
    return LogHeader(
        __version__,
        scenario.system.name,
        scenario.fleet,
        source="simulate",
        from_ms=scenario.warm_ms,
        until_ms=until_ms,
    )


def _truth(question: Question) -> Mapping[str, Profile]:
    return question.truth or question.alone or question.profiles


def _physics(question: Question, settings: SimulationSettings) -> Physics:
    slowed = ConstantFactor(question.slowdown) if question.slowdown > 1 else None
    known = physics_of(question.gpu)
    return replace(known, interference=slowed, jitter=settings.jitter, seed=settings.seed)
