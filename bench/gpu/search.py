"""Trials of one system at one load after the other, and the highest load that it keeps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt
from time import perf_counter, process_time
from typing import Final, NamedTuple

from bench.fidelity.live import play
from bench.fidelity.stand import Stand
from bench.fidelity.twin import figures
from bench.gpu.bench import Bench
from bench.gpu.contestants import Contestant
from bench.gpu.world import DRY_SLO_MS, LEAST_SLO_MS, demand, profiles_of
from interlace.core.hardware import Gpu
from interlace.core.messages import Command, CreatePartition, Event, Run, WorkFinished
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profile
from interlace.core.request import Outcome
from interlace.policy.base import System
from interlace.runtime.runtime import Observer
from interlace.sim.arrivals import merge_arrivals, poisson
from interlace.sim.record import RunRecord

#: Of every model's requests: a load is kept if so many are in time.
IN_TIME: Final = 0.99
#: Of the area bound, which nobody passes.
MOST_LOAD: Final = 1.2
#: Every engine, arrival and reply is this one process's work; beyond it nothing is the GPU's.
_MOST_RPS: Final = 12_000.0
#: A generator that is later than this, at p99, tells of itself.
_LATE_MS: Final = 2.0
#: A search has come to its end once what is kept and what is not are so near.
_NEAR: Final = 0.05


@dataclass(frozen=True, slots=True)
class Trial:
    """One run at one load; ``worst`` is the part in time of the model that fares worst.

    ``busy`` is the part of the GPU that its graphs had: shares times their own time. ``late_ms`` is
    the p99 of how late requests were sent, ``cpu`` the cores that this process used meanwhile.
    """

    load: float
    goodput_rps: float
    offered_rps: float
    worst: float
    p99_ms: float
    mean_ms: float = 0.0
    busy: float = 0.0
    sent: int = 0
    late_ms: float = 0.0
    cpu: float = 0.0

    @property
    def kept(self) -> bool:
        return self.worst >= IN_TIME

    @property
    def void(self) -> bool:
        """Whether the generator, not the system, decided: it kept the load from coming as drawn."""
        return self.late_ms > _LATE_MS


@dataclass(frozen=True, slots=True)
class Race:
    """What the contestants run: profiles once for all, seconds a trial, trials each."""

    profiles: Mapping[str, Profile]
    seconds: float
    trials: int
    least_slo_ms: float = LEAST_SLO_MS


async def race_of(bench: Bench, opened: Stand, seconds: float, trials: int) -> Race:
    """With kept profiles, or new ones; without a GPU, short and patient."""
    profiles = await profiles_of(bench, opened)
    least_ms = bench.size(LEAST_SLO_MS, DRY_SLO_MS)
    return Race(profiles, bench.size(seconds, 0.2), bench.size(trials, 1), least_ms)


class Search:
    """What one contestant does at loads that are said, and the highest that it keeps.

    A load is kept if 99 % of every model's requests are in time.
    """

    def __init__(self, one: Contestant, opened: Stand, race: Race) -> None:
        self.one = one
        self.trials: list[Trial] = []
        self._opened, self._race = opened, race
        whole = demand(race.profiles, opened.device.gpu, 1.0, race.least_slo_ms)
        self._total_rps = sum(asked.rows_per_s for asked in whole)

    @property
    def most(self) -> float:
        """The highest load that is asked of anyone."""
        return min(MOST_LOAD, _MOST_RPS / self._total_rps)

    @property
    def high(self) -> float:
        """The lowest load that was not kept; the highest that is asked if there is none."""
        return min((one.load for one in self.trials if not one.kept), default=self.most)

    @property
    def low(self) -> float:
        """The highest load that was kept below all that were not."""
        return max((one.load for one in self.trials if self._counts(one)), default=0.0)

    @property
    def settled(self) -> bool:
        """Whether another trial would tell little."""
        return self.high - self.low <= _NEAR * self.high

    def knows(self, load: float) -> bool:
        """Whether that load was tried."""
        return any(one.load == min(load, self.most) for one in self.trials)

    async def at(self, load: float, seconds: float | None = None, seed: int = 1) -> Trial:
        """A trial at that load, or at the highest that is asked if it is higher."""
        load = min(load, self.most)
        taken = await trial(self._opened, self._race, self.one, load, seconds, seed)
        self.trials.append(taken)
        return taken

    async def step(self, seconds: float | None = None) -> None:
        """A trial in the middle of what is not known yet."""
        await self.at((self.low + self.high) / 2, seconds)

    @property
    def best(self) -> Trial:
        """The trial with the highest goodput that was kept; if none was, with the highest."""
        return max(self.trials, key=lambda one: (self._counts(one), one.goodput_rps))

    @property
    def reach_rps(self) -> tuple[float, float]:
        """Requests in time per second: what was seen to be kept, and what was not."""
        kept = [one.goodput_rps for one in self.trials if self._counts(one)]
        return max(kept, default=0.0), self.high * self._total_rps

    def _counts(self, one: Trial) -> bool:
        return one.kept and all(one.load < t.load for t in self.trials if not t.kept)


async def trial(
    opened: Stand,
    race: Race,
    one: Contestant,
    load: float,
    seconds: float | None = None,
    seed: int = 1,
) -> Trial:
    """One contestant at one load."""
    gpu, seconds = opened.device.gpu, seconds or race.seconds
    asked = demand(race.profiles, gpu, load, race.least_slo_ms)
    plan = one.plan(asked, gpu, race.profiles)
    busy, began_s, used_s = Busy(gpu), perf_counter(), process_time()
    record = await played(opened, race, one.system, plan, asked, seconds, (busy,), seed)
    cpu = (process_time() - used_s) / (perf_counter() - began_s)
    found = _trial(load, record, seconds, busy.part(seconds))
    return replace(found, late_ms=opened.late_ms, cpu=cpu)


async def played(
    opened: Stand,
    race: Race,
    row: System,
    plan: Plan,
    asked: Sequence[Demand],
    seconds: float,
    observers: Sequence[Observer] = (),
    seed: int = 1,
) -> RunRecord:
    """The requests of one seed through engine and device."""
    workloads = {each.model: poisson(each.rows_per_s) for each in asked}
    arrivals = merge_arrivals(workloads, seconds, seed)
    return await play(opened, row, plan, asked, race.profiles, arrivals, observers)


def _trial(load: float, record: RunRecord, seconds: float, busy: float) -> Trial:
    sent: dict[str, int] = {}
    kept: dict[str, int] = {}
    for one in record.served:
        sent[one.model] = sent.get(one.model, 0) + 1
        kept[one.model] = kept.get(one.model, 0) + (one.outcome is Outcome.OK)
    worst = min((kept[model] / count for model, count in sent.items()), default=0.0)
    seen = figures(record)
    took_ms = [one.answered_ms - one.arrived_ms for one in record.served]
    mean_ms = sum(took_ms) / len(took_ms) if took_ms else 0.0
    count = len(record.served)
    return Trial(load, seen.goodput_rps, count / seconds, worst, seen.p99_ms, mean_ms, busy, count)


class Busy:
    """An observer of a runtime. Of partitions that overlap, shares add up to more than the GPU."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._shares_pct: dict[str, int] = {}
        self._busy_ms = 0.0

    def __call__(self, now_ms: float, event: Event, commands: Sequence[Command]) -> None:
        if not isinstance(event, WorkFinished) or event.failure is not None:
            return
        work = event.work
        if isinstance(work, CreatePartition):
            self._shares_pct[work.partition] = work.share_pct
        elif isinstance(work, Run):
            part = self._gpu.fraction(self._shares_pct[work.partition])
            # Without the GPU's own time, from the launch until its end was seen.
            self._busy_ms += part * (event.timing.gpu_ms or event.timing.infer_ms)

    def part(self, seconds: float) -> float:
        """Of all SMs over so long."""
        return self._busy_ms / (1000.0 * seconds)


#: Of a normal distribution: 95 % lie within so many deviations.
_Z: Final = 1.96


class Ratio(NamedTuple):
    """One over another, and between what it lies."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


def reached(one: Search, other: Search) -> Ratio:
    """Of the highest loads kept: each lies between what was kept and what was not."""
    (low, high), (other_low, other_high) = one.reach_rps, other.reach_rps
    return Ratio(_over(low, other_low), _over(low, other_high), _over(high, other_low))


def at_one_load(one: Trial, other: Trial) -> Ratio:
    """Of the requests in time at the same offered load: 95 %, as if each were drawn alone."""
    (low, high), (other_low, other_high) = in_time(one), in_time(other)
    return Ratio(
        _over(one.goodput_rps, other.goodput_rps), _over(low, other_high), _over(high, other_low)
    )


def in_time(one: Trial) -> tuple[float, float]:
    """Requests in time per second, with 95 %: the interval of Wilson for a part of those sent."""
    if not one.sent:
        return 0.0, 0.0
    n, part = one.sent, min(1.0, one.goodput_rps / one.offered_rps)
    middle = (part + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * sqrt(part * (1 - part) / n + _Z**2 / (4 * n**2))
    return (middle - half) * one.offered_rps, (middle + half) * one.offered_rps


def _over(one: float, other: float) -> float:
    if other > 0:
        return one / other
    return inf if one > 0 else 1.0
