"""Comparison 1: requests in time per second that each system reaches on this GPU.

Every system gets the same models (half precision, channels last, graphs), profiles and Poisson
arrivals. Its goodput is that of the highest load, in parts of the area bound, at which every model
has 99 % of its requests within the SLO; the load is searched by halving, a trial of each system in
turn. The papers' systems run here on green contexts; `percentages` has them on those of MPS.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from bench.fidelity.gaps import figures
from bench.fidelity.live import play
from bench.fidelity.measured import half_pct
from bench.fidelity.stand import Stand
from bench.gpu.bench import Bench
from bench.gpu.contestants import CONTESTANTS, Contestant, protecting, scaled
from bench.gpu.devices import lacking, maker
from bench.gpu.flowing import flow
from bench.gpu.opened import stand
from bench.gpu.rows import Row, failed, judged, seen, skipped
from bench.gpu.world import DRY_SLO_MS, LEAST_SLO_MS, demand, profiles_of
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profile
from interlace.core.request import Outcome
from interlace.policy.base import System
from interlace.policy.catalog import system
from interlace.sim.arrivals import mixed
from interlace.sim.record import Record
from interlace.sim.workload.renewal import poisson

_IN_TIME = 0.99
#: Of the area bound; a search begins at half of it.
_MOST_LOAD = 1.2
#: Every engine, arrival and reply is this one process's work; beyond it nothing is the GPU's.
_MOST_RPS = 12_000.0
MODELS = ("resnet50", "vgg19", "bert_base", "mobilenet_v2", "resnext50", "densenet121")
#: Times temporal, times streams, of the area bound: what the project is after.
_GOALS = {"temporal": 2.0, "streams": 1.3}
_OF_BOUND = 0.9
#: A contestant that does not come to its end leaves time for the others.
_LIMIT_S = 40.0


@dataclass(frozen=True, slots=True)
class Trial:
    """One run at one load; ``worst`` is the part in time of the model that fares worst."""

    load: float
    goodput_rps: float
    offered_rps: float
    worst: float
    p99_ms: float
    mean_ms: float = 0.0

    @property
    def kept(self) -> bool:
        return self.worst >= _IN_TIME


@dataclass(frozen=True, slots=True)
class Race:
    """What the contestants run: profiles once for all, seconds a trial, trials each."""

    profiles: Mapping[str, Profile]
    seconds: float
    trials: int
    least_slo_ms: float = LEAST_SLO_MS


def rows(bench: Bench) -> Iterator[Row]:
    """A row a system, the ratios that are aimed at, and a protected model beside a full GPU."""
    yield from flow(_rows(bench))


async def _rows(bench: Bench) -> AsyncIterator[Row]:
    profiles: dict[str, Profile] = {}
    best: dict[str, Trial] = {}
    for kind, group in groupby(CONTESTANTS, key=lambda one: one.device):
        why = lacking(bench, kind)
        if why:
            yield skipped(kind, why)
            continue
        try:
            async with stand(bench, maker(bench, kind), MODELS) as opened:
                profiles = profiles or await profiles_of(bench, opened)
                race = Race(
                    profiles,
                    bench.size(2.0, 0.2),
                    _trials(bench),
                    bench.size(LEAST_SLO_MS, DRY_SLO_MS),
                )
                async for row in contest(opened, race, tuple(group), best, bench):
                    yield row
                if kind == "green":
                    yield await protected(opened, race)
        except Exception as error:
            yield failed(kind, error)
    for row in compared(best):
        yield row


def _trials(bench: Bench) -> int:
    """Four halvings find the load to within a tenth; --patience gives time for more."""
    return bench.size(max(4, min(8, int(bench.left_s / 25))), 1)


async def contest(
    opened: Stand, race: Race, group: Sequence[Contestant], best: dict[str, Trial], bench: Bench
) -> AsyncIterator[Row]:
    """A row for each of the contestants of one device; their best trials go into ``best``.

    They take turns, a trial each, so that all know their loads equally well when time is up.
    """
    searches = [Search(one, opened, race) for one in group]
    for _ in range(race.trials):
        for search in list(searches):
            if bench.left_s <= 0:
                break
            try:
                await asyncio.wait_for(search.step(), _LIMIT_S)
            except Exception as error:
                searches.remove(search)
                yield failed(search.one.name, error)
    for search in searches:
        if not search.trials:
            yield skipped(search.one.name, "no time was left for it")
            continue
        best[search.one.name] = search.best
        yield told(search)


def told(search: Search) -> Row:
    """The row of a search."""
    one, found = search.one, search.best
    words = f"{found.goodput_rps:.0f} in time per s at load {found.load:.2f}, p99 "
    words += f"{found.p99_ms:.1f} ms, worst model {100 * found.worst:.1f} %"
    return seen(
        f"goodput of {one.name} ({one.device})",
        words if found.kept else f"never 99 %: {words}",
        kept=found.kept, load=found.load, goodput_rps=found.goodput_rps, p99_ms=found.p99_ms,
        mean_ms=found.mean_ms,
        trials=[[t.load, t.worst, t.goodput_rps] for t in search.trials],
    )  # fmt: skip


class Search:
    """The highest load of one contestant that keeps every model at 99 %, looked for by halving."""

    def __init__(
        self, one: Contestant, opened: Stand, race: Race, first: float | None = None
    ) -> None:
        """``first``: the load of the first trial, if something is known of it."""
        self.one = one
        self.trials: list[Trial] = []
        self._opened, self._race = opened, race
        whole = demand(race.profiles, opened.device.gpu, 1.0, race.least_slo_ms)
        total_rps = sum(asked.rate_rps for asked in whole)
        self._low, self._high = 0.0, min(_MOST_LOAD, _MOST_RPS / total_rps)
        self._next = first if first is not None else self._high / 2

    async def step(self) -> None:
        """One more trial."""
        load = self._next
        self.trials.append(await trial(self._opened, self._race, self.one, load))
        if self.trials[-1].kept:
            self._low = load
        else:
            self._high = load
        self._next = (self._low + self._high) / 2

    @property
    def best(self) -> Trial:
        """The trial with the highest goodput that was kept; if none was, with the highest."""
        return max(self.trials, key=lambda one: (one.kept, one.goodput_rps))


async def trial(opened: Stand, race: Race, one: Contestant, load: float) -> Trial:
    """One contestant at one load."""
    gpu = opened.device.gpu
    asked = demand(race.profiles, gpu, load, race.least_slo_ms)
    plan = one.plan(asked, gpu, race.profiles)
    record = await played(opened, race, one.system, plan, asked)
    return _trial(load, record, race.seconds)


async def played(
    opened: Stand, race: Race, row: System, plan: Plan, asked: Sequence[Demand]
) -> Record:
    """The requests of one seed through engine and device."""
    workloads = {each.model: poisson(each.rate_rps) for each in asked}
    arrivals = mixed(workloads, race.seconds, seed=1)
    return await play(opened, row, plan, asked, race.profiles, arrivals)


def _trial(load: float, record: Record, seconds: float) -> Trial:
    sent: dict[str, int] = {}
    kept: dict[str, int] = {}
    for one in record.served:
        sent[one.model] = sent.get(one.model, 0) + 1
        kept[one.model] = kept.get(one.model, 0) + (one.outcome is Outcome.OK)
    worst = min((kept[model] / count for model, count in sent.items()), default=0.0)
    seen_ = figures(record)
    took_ms = [one.answered_ms - one.arrived_ms for one in record.served]
    mean_ms = sum(took_ms) / len(took_ms) if took_ms else 0.0
    offered_rps = len(record.served) / seconds
    return Trial(load, seen_.goodput_rps, offered_rps, worst, seen_.p99_ms, mean_ms)


async def protected(opened: Stand, race: Race) -> Row:
    """p99 of a model on half the GPU while the other half is full, over p99 while it is idle."""
    gpu = opened.device.gpu
    whole = demand(race.profiles, gpu, 1.0, race.least_slo_ms)
    asked = (scaled(whole[:1], 0.3 * len(whole))[0], *scaled(whole[1:], 0.9))
    plan, row = protecting(asked, gpu, half_pct(gpu)), system("triton")
    quiet = (asked[0], *scaled(asked[1:], 1e-6))
    p99s_ms = [
        _p99_ms(await played(opened, race, row, plan, each), asked[0].model)
        for each in (quiet, asked)
    ]
    slower = p99s_ms[1] / p99s_ms[0]
    return judged(
        "p99 of a protected model beside a full GPU", "at most 1.10 of alone",
        f"{slower:.2f} of alone ({p99s_ms[0]:.2f} to {p99s_ms[1]:.2f} ms)", slower <= 1.10,
        alone_ms=p99s_ms[0], beside_ms=p99s_ms[1],
    )  # fmt: skip


def _p99_ms(record: Record, model: str) -> float:
    served = [one for one in record.served if one.model == model]
    part = Record(record.from_ms, record.until_ms, record.gpus, served, (), ())
    return figures(part).p99_ms


def compared(best: Mapping[str, Trial]) -> Iterator[Row]:
    """Ours over the others, beside what is aimed at."""
    ours = best.get("interlace")
    if ours is None:
        return
    for name, goal in _GOALS.items():
        if name in best and best[name].goodput_rps > 0:
            times = ours.goodput_rps / best[name].goodput_rps
            yield judged(
                f"interlace over {name}", f"at least {goal:g}", f"{times:.2f}", times >= goal
            )
    part = ours.goodput_rps / ours.offered_rps * ours.load if ours.offered_rps else 0.0
    yield judged(
        "interlace over the area bound", f"at least {_OF_BOUND:g}", f"{part:.2f}",
        part >= _OF_BOUND and ours.kept,
    )  # fmt: skip
