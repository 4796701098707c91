"""Figure 14: rates that rise and fall."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Final

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from bench.harness import COLOURS, Report, Row, each
from bench.hosting_gaps import Gaps
from bench.papers.gpulet.trial import LAW
from bench.planning.gpulet_profiles import MODELS, profiles
from bench.planning.schedulers import GPU
from interlace.core.gpu_kinds import uniform_fleet
from interlace.core.hardware import Fleet, Gpu, Trait
from interlace.core.messages import Command, Event, SendReply
from interlace.core.plan import Demand
from interlace.core.profile import Profiles
from interlace.core.request import Outcome
from interlace.device.simulated.device import SimulatedDevice
from interlace.device.simulated.physics import MechanismCosts, Physics
from interlace.device.simulated.running_batches import Timer
from interlace.engine.engine import Engine
from interlace.policy import catalog
from interlace.policy.base import System
from interlace.policy.planners.gpulet import Gpulet
from interlace.sim.arrivals import Times, merge_arrivals
from interlace.sim.record import PartitionSpan, RunRecord
from interlace.sim.recorder import Recorder
from interlace.sim.run import simulate
from interlace.sim.scenario import Reserve, Simulation

NAMES: Final = ("mob", "res", "vgg")
LENGTH_S: Final = 3_200.0
#: (time in s, requests/s of each model), straight lines between.
WAVES: Final = ((0, 40), (600, 400), (1200, 40), (1400, 40), (2200, 700), (3000, 40), (3200, 40))
PUBLISHED_VIOLATIONS_PCT: Final = 1.0
_WINDOW_S: Final = 20.0
_CARVE_MS: Final = 12_000.0


def figure14(
    *,
    system: Annotated[str, "a row of the catalog"] = "gpulet",
    rate: Annotated[float, "part of the rates"] = 0.3,
    time: Annotated[float, "part of the time"] = 1.0,
) -> Report:
    """Figure 14: rates that rise and fall over 3,200 s; GPUs are cut anew, come and go.

    Scenario 3 (mob, res, vgg at equal rates) on up to eight GPUs. Rates are looked at every 20 s; a
    new partition takes 12 s to stand beside the old ones. Left open: the rates (peaks of 400 and
    700 requests/s a model; three tenths of that without --rate 1), latencies and interference
    (Figure 12's).
    """
    found = play(system, rate, time)
    return Report(_rows(found, system), partial(_draw, found), (7.0, 6.0))


@dataclass(frozen=True, slots=True)
class Wave:
    """Poisson arrivals after ``WAVES``, at a part of the rate, in a part of the time."""

    rate: float
    time: float = 1.0

    def __call__(self, seconds: float, random: np.random.Generator) -> Times:
        marks_s, rates = np.array(WAVES, float).T * [[self.time], [self.rate]]
        top = rates.max()
        times_s = np.sort(random.uniform(0.0, seconds, random.poisson(top * seconds)))
        kept = random.uniform(0.0, top, len(times_s)) < np.interp(times_s, marks_s, rates)
        times_ms: NDArray[np.float64] = times_s[kept] * 1000.0
        return times_ms


@dataclass(slots=True)
class Windows:
    """Requests answered well and otherwise in each window of time, by model."""

    window_ms: float
    good: Counter[tuple[str, int]] = field(default_factory=Counter)
    bad: Counter[tuple[str, int]] = field(default_factory=Counter)

    def __call__(self, now_ms: float, event: Event, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, SendReply):
                counts = self.good if command.reply.outcome is Outcome.OK else self.bad
                request = command.reply.request
                counts[request.model, int(request.arrived_ms // self.window_ms)] += 1

    def series(self, counts: Counter[tuple[str, int]], model: str) -> NDArray[np.int64]:
        last = max((index for _, index in (*self.good, *self.bad)), default=0)
        return np.array([counts[model, index] for index in range(last + 1)])


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What a run came to."""

    record: RunRecord
    windows: Windows
    gaps: Gaps

    @property
    def violations_pct(self) -> float:
        bad, good = self.windows.bad.total(), self.windows.good.total()
        return 100.0 * bad / max(1, bad + good)

    @property
    def calm_windows_pct(self) -> float:
        """Windows in which no model lost more than 1 %."""
        good, bad = self.windows.good, self.windows.bad
        every = {window for _, window in good.keys() | bad.keys()}
        lost = {key[1] for key, count in bad.items() if count > 0.01 * (count + good[key])}
        return 100.0 * (len(every) - len(lost)) / max(1, len(every))

    def gpus(self, at_ms: float) -> int:
        """Accelerators that hold a partition."""
        return len({one.gpu for one in self._standing(at_ms)})

    def shares_pct(self, at_ms: float) -> int:
        """The sum of all partitions' shares."""
        return sum(one.share_pct for one in self._standing(at_ms))

    def _standing(self, at_ms: float) -> list[PartitionSpan]:
        return [s for s in self.record.spans if s.carved_ms <= at_ms < s.released_ms]


def gpus(count: int) -> tuple[Gpu, ...]:
    """The paper's GPUs under MPS: what leaves and what comes may overlap."""
    traits = frozenset({Trait.OVERLAPPED_REORGANISATION})
    return uniform_fleet(replace(GPU, traits=traits), count).gpus


def make(gpu: Gpu, timer: Timer, truth: Profiles) -> SimulatedDevice:
    """A simulated GPU whose partitions slow each other and take their time to stand."""
    costs = MechanismCosts(carve_ms=_CARVE_MS)
    return SimulatedDevice(gpu, timer, truth, costs, Physics(costs=costs, interference=LAW))


def row(name: str) -> System:
    """The catalog's row; gpulet's with the interference of its GPUs."""
    found = catalog.resolve(name)
    return replace(found, packer=Gpulet(LAW)) if name == "gpulet" else found


def play(name: str, rate: float, time: float = 1.0, count: int = 8) -> Outcomes:
    """One system through the waves, at a part of their rate, in a part of their time."""
    chosen, there = row(name), Fleet(gpus(count)[:1])
    reserve = Reserve(gpus(count)[1:], 0.0)
    known = {model: profiles()[model] for model in NAMES}
    first_rps = WAVES[0][1] * rate
    scenario = Simulation(
        chosen,
        there,
        tuple(Demand(model, first_rps, MODELS[model][0]) for model in NAMES),
        known,
        known,
        merge_arrivals({model: Wave(rate, time) for model in NAMES}, LENGTH_S * time, seed=1),
        device=make,
        reserve=reserve,
        warm_ms=20_000.0,
    )
    windows = Windows(_WINDOW_S * 1000.0)
    gaps = Gaps(Engine(there, chosen, reserve.gpus))
    return Outcomes(simulate(scenario, [windows, gaps], recorder=Recorder(0)), windows, gaps)


def _draw(found: Outcomes, figure: Figure) -> None:
    """Throughput, GPUs, shares and violations over time, as in the paper."""
    top, count, shares, lost = figure.subplots(4, sharex=True)
    windows = found.windows
    good = {m: windows.series(windows.good, m) for m in NAMES}
    at_s = (np.arange(len(good[NAMES[0]])) + 0.5) * _WINDOW_S
    rates = [counts / _WINDOW_S for counts in good.values()]
    top.stackplot(at_s, *rates, labels=NAMES, colors=COLOURS)
    top.legend(frameon=False, fontsize=7, loc="upper left")
    top.set_ylabel("in time /s")
    count.step(at_s, [found.gpus(s * 1000.0) for s in at_s], color=COLOURS[0])
    count.set_ylabel("GPUs")
    shares.step(at_s, [found.shares_pct(s * 1000.0) for s in at_s], color=COLOURS[0])
    shares.set_ylabel("shares, %")
    for model, colour in zip(NAMES, COLOURS, strict=False):
        bad = windows.series(windows.bad, model)
        lost.plot(at_s, 100.0 * bad / np.maximum(1, bad + good[model]), color=colour, lw=1)
    lost.axhline(PUBLISHED_VIOLATIONS_PCT, color="black", lw=0.6)
    lost.set(ylabel="violated, %", xlabel="s")


def _rows(found: Outcomes, name: str) -> list[Row]:
    """What the paper's text says, and what it draws."""
    record = found.record
    used = [found.gpus(at) for at in np.arange(record.from_ms, record.until_ms, 5_000.0)]
    counts = {
        "GPUs, least": min(used),
        "GPUs, most": max(used),
        "GPUs, mean": float(np.mean(used)),
        "changes of plan": len(found.gaps.changes),
        "times without a host": len(found.gaps.gaps),
    }
    return [
        Row(f"{name}: violated", PUBLISHED_VIOLATIONS_PCT, found.violations_pct, " %"),
        Row(f"{name}: windows of 20 s below 1 %", 100.0, found.calm_windows_pct, " %"),
        *each(f"{name}: {{}}", counts),
    ]
