"""A scenario's requests played in virtual time: the fleet a system gets, its plan, the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from interlace.core.gpu_kinds import uniform_fleet
from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Partition, Plan, as_rate_rps
from interlace.core.rendering import html_table, json_text
from interlace.core.tables import TableError, counted
from interlace.core.user_errors import InputError
from interlace.core.version import __version__
from interlace.device.simulated.device import device_factory
from interlace.packing.bounds import LowerBound, lower_bound
from interlace.planning.memory_trial import cold_curves
from interlace.planning.plan_file import load_fleet_plan
from interlace.planning.plan_search import search_plan
from interlace.planning.scenario import Scenario, read_scenario
from interlace.planning.trial import scenario_physics
from interlace.policy.base import System
from interlace.policy.catalog import system_of
from interlace.runtime.log.codec import LogHeader
from interlace.runtime.log.write import LogWriter
from interlace.sim.arrivals import Arrivals, Workload, merge_arrivals
from interlace.sim.observers import ColdRequests
from interlace.sim.record import RunRecord
from interlace.sim.report import Report, report
from interlace.sim.run import simulate as play
from interlace.sim.scenario import Simulation
from interlace.sim.workload.files import TraceError
from interlace.sim.workload.parse import workload
from interlace.sim.workload.traces import TraceFiles


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """How a scenario is simulated.

    ``seconds`` of arrivals at ``load`` times the scenario's rates, the same for the same ``seed``.
    They run on ``gpus`` accelerators (None: the fewest that the system plans for), or by a saved
    ``plan``. With ``jitter``, latencies spread as in the profiles.
    """

    seconds: float = 20.0
    load: float = 1.0
    seed: int = 0
    gpus: int | None = None
    plan: Path | None = None
    jitter: bool = False


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """A system's run and its figures.

    ``cold_part``: with swapped weights, the part of the requests whose model was resident on no
    accelerator.
    """

    system: str
    settings: SimulationSettings
    fleet: Fleet
    plan: Plan
    record: RunRecord
    report: Report
    bound: LowerBound
    cold_part: float | None = None

    @property
    def gpus(self) -> int:
        """Accelerators that the plan uses."""
        return len({partition.gpu for partition in self.plan.partitions})

    @property
    def highest_load(self) -> float:
        """No scheduler keeps every SLO on these accelerators above this load."""
        needed = max(self.bound.area.accelerators, self.bound.configuration.accelerators)
        return self.settings.load * len(self.fleet.gpus) / needed if needed else float("inf")

    def to_dict(self) -> dict[str, object]:
        """The figures as plain values, units in the names."""
        return {
            "system": self.system,
            "load": self.settings.load,
            "seed": self.settings.seed,
            "gpus": self.gpus,
            "gpus_bound": self.bound.gpus,
            "highest_load": self.highest_load,
            "unserved_rows_per_s": dict(self.plan.unserved_rows_per_s),
            "cold_part": self.cold_part,
            "report": self.report.plain(),
        }

    def to_json(self) -> str:
        """``to_dict`` as indented JSON."""
        return json_text(self.to_dict())

    def __repr__(self) -> str:
        found = self.report
        return (
            f"<SimulationResult: {self.system} on {counted(self.gpus, 'GPU')}, "
            f"{counted(found.requests, 'request')}, {100 * found.attainment:.2f} % in time, "
            f"worst model {100 * found.worst_attainment:.2f} %>"
        )

    def _repr_html_(self) -> str:
        """Return the figures of each model as a table, for notebooks."""
        rows = {
            name: {
                "offered/s": f"{one.offered_rps:.1f}",
                "in time/s": f"{one.goodput_rps:.1f}",
                "in SLO %": f"{100 * one.attainment:.2f}",
                "p50 ms": f"{one.latency.p50_ms:.1f}",
                "p99 ms": f"{one.latency.p99_ms:.1f}",
            }
            for name, one in self.report.models.items()
        }
        return html_table(repr(self), "model", rows)

    def plot(self, kind: str, path: Path | str) -> None:
        """Draw the run (cdf, tiles, load or gpus) into an .svg or .png file.

        Raises:
            InputError: there is no such kind, or the path has another suffix.
            OSError: the file cannot be written.
        """
        from interlace.planning.drawing import KINDS, draw_runs  # needs this module

        if kind not in KINDS:
            raise InputError(f"no kind of plot '{kind}'; expected one of {', '.join(KINDS)}")
        draw_runs(kind, Path(path), [self])


def simulate(
    scenario: Scenario | Path | str,
    *,
    system: str | System = "interlace",
    seconds: float = 20.0,
    load: float = 1.0,
    seed: int = 0,
    gpus: int | None = None,
    plan: Path | None = None,
    jitter: bool = False,
    log: Path | None = None,
) -> SimulationResult:
    """Play a scenario's requests in virtual time and report what became of them.

    The engine that serves decides; only the clock and the accelerators are simulated. ``scenario``
    may be the path of a scenario file (docs/planning.md, with workloads of docs/workloads.md), the
    other arguments are those of ``SimulationSettings``. Every event is kept in ``log``, which
    ``interlace replay`` reads.

    Example::

        found = interlace.simulate("examples/planning/nine.toml", system="gpulet", seconds=10)
        print(found.report.goodput_rps, found.report.models["vgg"].latency.p99_ms)

    Raises:
        InputError: the scenario, a workload or the plan is not what it should be, or there is no
            such system; what is expected.
        OSError: the log cannot be written.
    """
    if not isinstance(scenario, Scenario):
        scenario = read_scenario(scenario)
    settings = SimulationSettings(seconds, load, seed, gpus, plan, jitter)
    return next(simulations(scenario, [system_of(system)], [settings], log))


def simulations(
    scenario: Scenario,
    systems: Sequence[System],
    settings: Sequence[SimulationSettings],
    log: Path | None = None,
    on_run: Callable[[str], None] = lambda name: None,
    on_progress: Callable[[float], None] = lambda part: None,
) -> Iterator[SimulationResult]:
    """Every system on the same trace, for each of the settings; a plan is made once for a load.

    ``on_run`` hears what each run is before it begins, ``on_progress`` the part of it that is done.
    """
    placements: dict[tuple[str, SimulationSettings], tuple[Fleet, Plan]] = {}
    for one in settings:
        arrivals = trace(scenario, one)
        for system in systems:
            on_run(f"{system.name}, load {one.load:g}, seed {one.seed}")
            key = (system.name, replace(one, seed=0))  # the same for every seed
            if key not in placements:
                placements[key] = _placement(scenario, system, one)
            yield _run(scenario, system, arrivals, one, placements[key], log, on_progress)


def trace(scenario: Scenario, settings: SimulationSettings) -> Arrivals:
    """The scenario's arrivals: a load above 1 plays its workloads so many times faster."""
    made = merge_arrivals(workloads(scenario), settings.seconds * settings.load, settings.seed)
    return Arrivals(made.models, made.times_ms / settings.load, made.which, settings.seconds)


def workloads(scenario: Scenario) -> dict[str, Workload]:
    """The arrivals that the scenario's tables describe, by model or app.

    Raises:
        InputError: a table is not what it should be, or its file cannot be read or is no trace.
    """
    made: dict[str, Workload] = {}
    traces = TraceFiles(scenario.folder)
    own = scenario.own
    asked = [("models", one.model, as_rate_rps(one.rows_per_s), one.cv) for one in own]
    asked += [("apps", name, one.rate_rps, one.cv) for name, one in scenario.apps.items()]
    for kind, name, rate_rps, cv in asked:
        table, where = scenario.workloads.get(name, {}), f"{kind}.{name}.workload"
        try:
            made[name] = workload(table, name, rate_rps, cv, traces, where)
        except TableError as error:
            raise InputError(str(error)) from None
        except TraceError as error:
            raise InputError(f"{where}: {error}") from None
        except OSError as error:
            raise InputError(f"{where}.file: {error.filename}: {error.strerror}") from None
    return made


def _placement(
    scenario: Scenario, system: System, settings: SimulationSettings
) -> tuple[Fleet, Plan]:
    """The fewest accelerators by the system's packer, or its planner's cut of a fixed number.

    Where a system's partitions overlap, its planner cuts as many as its packer needs. Plans are
    made for the scenario's rates times the load.
    """
    demand, profiles, gpu = at_load(scenario, settings), scenario.busy_profiles, scenario.gpu
    if settings.plan is not None:
        there, partitions = load_fleet_plan(settings.plan, gpu, system.name.partition("+")[0])
        return there, Plan(partitions, overlapping=_overlap(partitions, there))
    if settings.gpus is not None:
        whole = uniform_fleet(gpu, settings.gpus)
        return whole, system.planner(demand, whole, profiles, Plan())
    start = lower_bound(demand, gpu, scenario.profiles).gpus
    found = search_plan(scenario.times(settings.load), system, start)
    cut = system.planner(demand, found.fleet, profiles, Plan())
    return found.fleet, cut if cut.overlapping or not found.gpus else found.plan


def _overlap(partitions: Sequence[Partition], there: Fleet) -> bool:
    shares = {gpu.id: [p.share_pct for p in partitions if p.gpu == gpu.id] for gpu in there.gpus}
    return any(sum(of_one) > 100 for of_one in shares.values())


def _run(
    scenario: Scenario,
    system: System,
    arrivals: Arrivals,
    settings: SimulationSettings,
    placement: tuple[Fleet, Plan],
    log: Path | None,
    on_progress: Callable[[float], None],
) -> SimulationResult:
    """Play the trace by the plan of ``placement``, and report."""
    fleet, plan = placement
    demand = at_load(scenario, settings)
    truth = scenario.truth or scenario.profiles
    physics = replace(scenario_physics(scenario), jitter=settings.jitter, seed=settings.seed)
    simulation = Simulation(
        system,
        fleet,
        demand,
        belief=scenario.busy_profiles,
        truth=truth,
        arrivals=arrivals,
        plan=plan,
        device=device_factory(physics),
        apps={name: one.simulated for name, one in scenario.apps.items()},
    )
    cold = ColdRequests(cold_curves(truth, fleet, system), simulation.warm_ms)
    observers = [cold] if scenario.gpu.weights_bytes else []
    if log is None:
        record = play(simulation, observers, on_progress)
    else:
        with closing(LogWriter(log, _header(simulation))) as writer:
            record = play(simulation, [*observers, writer], on_progress)
    # By latencies as the simulated accelerators have them.
    bound = lower_bound(demand, scenario.gpu, truth, quantile="median_ms")
    sent = sum(cold.sent.values())
    part = sum(cold.cold.values()) / sent if sent else None
    return SimulationResult(system.name, settings, fleet, plan, record, report(record), bound, part)


def at_load(scenario: Scenario, settings: SimulationSettings) -> tuple[Demand, ...]:
    return scenario.times(settings.load).demand


def _header(simulation: Simulation) -> LogHeader:
    until_ms = simulation.warm_ms + simulation.arrivals.seconds * 1000.0
    return LogHeader(
        __version__,
        simulation.system.name,
        simulation.fleet,
        source="simulate",
        from_ms=simulation.warm_ms,
        until_ms=until_ms,
    )
