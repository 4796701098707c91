"""Comparison 1: requests in time per second that each system reaches on this GPU.

Every system gets the same models (half precision, channels last, graphs), profiles and Poisson
arrivals, on one device that is opened once and measures what has no profile: partitions of its own,
whole-GPU batches and streams over all SMs are lanes of the same process. First each runs at three
loads, in parts of the area bound, two of them at one load with other arrivals, too. Then ours, the
whole-GPU system and the best on streams are halved down to the highest load at which every model
has 99 % of its requests within the SLO. The papers' systems come then, as far as time goes, and
last a process for each model, under MPS and without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Final

from bench.fidelity.stand import Stand
from bench.gpu.bench import Bench
from bench.gpu.contestants import (
    OURS,
    PAPERS,
    PROCESSES,
    STREAMS,
    WHOLE,
    Contestant,
)
from bench.gpu.devices import lacking, maker, parted
from bench.gpu.lanes import ratio
from bench.gpu.opened import stand
from bench.gpu.profiles import measured
from bench.gpu.rows import Row, failed, judged, seen, skipped
from bench.gpu.search import Race, Ratio, Search, at_one_load, race_of, reached, trial

#: None so small that what one process can send decides.
MODELS: Final = ("resnet50", "vgg19", "bert_base", "resnext50", "densenet121")
#: Of the area bound, in this order: if time is short, the middle one is known of everyone.
LOADS: Final = (0.8, 1.1, 0.5)
_SECONDS, _LONG_S = 2.5, 5.0
#: What the project is after: over the better whole-GPU system, the best on streams, the bound.
_OVER_WHOLE, _OVER_STREAMS, _OF_BOUND = 2.0, 1.3, 0.9
#: Of the time that is left at the begin: until when the first loads, the halving, and the papers'
#: systems may go on. Processes, which have the rest, take seconds to start.
_FIRST, _HALVED, _PAPERS = 0.4, 0.6, 0.7
#: Beside the first arrivals, for ours and the whole-GPU system.
_SEEDS: Final = (2, 3)
_HALVINGS: Final = 6
#: A contestant that does not come to its end leaves time for the others.
_LIMIT_S: Final = 40.0
#: The first of all opens models, loads kernels and captures graphs, at a load that tells nothing.
_OPENING_LIMIT_S, _OPENING_LOAD, _OPENING_S = 120.0, 0.3, 0.5


async def rows(bench: Bench) -> AsyncIterator[Row]:
    """Profiles that were missing, a row a system, and the ratios that are aimed at."""
    kind, names = parted(bench), bench.models or MODELS
    async with stand(bench, maker(bench, kind, keep=True), names) as opened:
        async for row in measured(bench, opened):
            yield row
        race = await race_of(bench, opened, _SECONDS, _HALVINGS)
        contest = Contest(bench, opened, race, kind)
        async for row in contest.rows():
            yield row
    for apart, group in PROCESSES.items():
        async for row in processes(bench, contest, apart, group):
            yield row


async def processes(
    bench: Bench, contest: Contest, kind: str, group: Sequence[Contestant]
) -> AsyncIterator[Row]:
    """A process for each model, at the same loads with the same profiles, beside our row."""
    why = lacking(bench, kind) or ("" if bench.left_s else "no time was left for it")
    if why:
        yield skipped(kind, why)
        return
    try:
        names = bench.models or MODELS
        async with stand(bench, maker(bench, kind, keep=True), names) as opened:
            others = Contest(bench, opened, contest.race, kind)
            for row in await others.at_loads(group, bench.size(LOADS, LOADS[:1]), until=1.0):
                yield row
        for row in contest.beside(others):
            yield row
    except Exception as error:
        yield failed(kind, error)


class Contest:
    """The trials of everyone, in an order that leaves the most if time runs out."""

    def __init__(self, bench: Bench, opened: Stand, race: Race, kind: str) -> None:
        self._bench, self._opened, self.race, self._kind = bench, opened, race, kind
        self._whole_s = bench.left_s
        self._searches: dict[str, Search] = {}

    async def rows(self) -> AsyncIterator[Row]:
        """Rows as they are found."""
        for row in await self.opened():
            yield row
        first = (OURS, *WHOLE, *STREAMS)
        loads = self._bench.size(LOADS, LOADS[:1])
        for row in await self.at_loads(first, loads, until=_FIRST):
            yield row
        for row in await self.seeds(loads[0]):
            yield row
        halved = [found for found in self.chosen() if found is not None]
        for row in await self.halve(halved):
            yield row
        for row in self.compared():
            yield row
        for row in await self.at_loads(PAPERS, loads, until=_PAPERS):
            yield row

    async def opened(self) -> list[Row]:
        """Open every model before anything is timed, as our row has them; a row if that failed."""
        first = trial(self._opened, self.race, OURS, _OPENING_LOAD, _OPENING_S)
        try:
            await asyncio.wait_for(first, _OPENING_LIMIT_S)
        except Exception as error:
            return [failed("opening every model", error)]
        return []

    def _left(self, until: float) -> bool:
        """Whether time is left until that part of what there was."""
        return self._bench.left_s > (1.0 - until) * self._whole_s

    async def at_loads(
        self, group: Sequence[Contestant], loads: Sequence[float], until: float
    ) -> list[Row]:
        """Each at the same loads, taking turns; a row of each."""
        searches = {one.name: Search(one, self._opened, self.race) for one in group}
        found: list[Row] = []
        for load in loads:
            for name, search in list(searches.items()):
                if not self._left(until) and (search.trials or load != loads[0]):
                    continue
                if not self._bench.left_s or search.knows(load):
                    continue
                try:
                    await asyncio.wait_for(search.at(load), _LIMIT_S)
                except Exception as error:
                    found.append(failed(f"{name} at {load:g}", error))
                    if name != OURS.name:  # the main figure is tried at every load
                        del searches[name]
        for name, search in searches.items():
            if search.trials:
                self._searches[name] = search
                found.append(told(search, self._kind))
            else:
                found.append(skipped(name, "no time was left for it"))
        return found

    def chosen(self) -> tuple[Search | None, Search | None, Search | None]:
        """Ours, the best that gives every batch the whole GPU, and the best on streams."""
        return self._best([OURS]), self._best(WHOLE), self._best(STREAMS)

    def _best(self, group: Iterable[Contestant]) -> Search | None:
        known = [self._searches[one.name] for one in group if one.name in self._searches]
        return max(known, key=lambda s: (s.best.kept, s.best.goodput_rps), default=None)

    async def seeds(self, load: float) -> list[Row]:
        """Ours over the whole-GPU system at one load, with the arrivals of each seed."""
        ours, whole, _ = self.chosen()
        if ours is None or whole is None:
            return []
        try:
            ratios = [
                await asyncio.wait_for(self._ratio(ours, whole, load, seed), 2 * _LIMIT_S)
                for seed in (1, *self._bench.size(_SEEDS, _SEEDS[:1]))
            ]
        except Exception as error:
            return [failed("other arrivals", error)]
        words = ", ".join(f"{one:.2f}" for one in ratios)
        return [
            seen(
                f"in time at {load:g}, by arrivals: interlace over {whole.one.name}", words,
                ratios=ratios,
            )
        ]  # fmt: skip

    async def _ratio(self, ours: Search, whole: Search, load: float, seed: int) -> float:
        """Of requests in time. What the first arrivals gave is known."""
        rps = []
        for search in (ours, whole):
            known = [one for one in search.trials if one.load == min(load, search.most)]
            one = known[0] if seed == 1 and known else await search.at(load, seed=seed)
            rps.append(one.goodput_rps)
        return ratio(*rps)

    async def halve(self, group: Sequence[Search]) -> list[Row]:
        """Longer trials between what is kept and what is not, in turn; the row of each again."""
        found: list[Row] = []
        for _ in range(self.race.trials):
            for search in list(group):
                if search.settled or not self._left(_HALVED):
                    continue
                try:
                    await asyncio.wait_for(search.step(self._bench.size(_LONG_S, 0.2)), _LIMIT_S)
                except Exception as error:
                    found.append(failed(f"halving of {search.one.name}", error))
                    return found
        return [told(search, f"{self._kind}, halved") for search in group]

    def compared(self) -> Iterator[Row]:
        """Ours over the others, beside what is aimed at."""
        ours, whole, streams = self.chosen()
        if ours is None:
            return
        yield from compared(ours, whole, streams)
        yield from self.beside(self)

    def beside(self, contest: Contest) -> Iterator[Row]:
        """Ours at the loads of everyone else in a contest."""
        ours = self._searches.get(OURS.name)
        for name, other in contest._searches.items():
            if ours is not None and other is not ours:
                yield from at_the_same_loads(ours, other, name)


def told(search: Search, kind: str) -> Row:
    """The row of a search."""
    best, trials = search.best, sorted(search.trials, key=lambda one: one.load)
    loads = ", ".join(
        f"{t.goodput_rps:.0f} at {t.load:.2f} ({100 * t.worst:.1f} %, {100 * t.busy:.0f} %)"
        f"{' void: sent late' if t.void else ''}"
        for t in trials
    )
    kept = f"99 % up to {search.low:.2f}" if best.kept else "never 99 %"
    return seen(
        f"goodput of {search.one.name} ({kind})",
        f"{kept}; in time per s at parts of the bound (worst model, GPU busy): {loads}",
        kept=best.kept, load=best.load, goodput_rps=best.goodput_rps, p99_ms=best.p99_ms,
        mean_ms=best.mean_ms, busy=best.busy, not_kept_load=search.high,
        trials=[
            [t.load, t.worst, t.goodput_rps, t.p99_ms, t.busy, t.late_ms, t.cpu]
            for t in search.trials
        ],
    )  # fmt: skip


def compared(ours: Search, whole: Search | None, streams: Search | None) -> Iterator[Row]:
    """Of the highest loads kept. A goal is reached if all of the interval is beyond it."""
    goals = (whole, "whole-GPU", _OVER_WHOLE), (streams, "streams", _OVER_STREAMS)
    for other, kind, goal in goals:
        if other is not None:
            ratio = reached(ours, other)
            yield judged(
                f"interlace over the best {kind} system, {other.one.name}", f"at least {goal:g}",
                str(ratio), ratio.low >= goal, **ratio._asdict(),
            )  # fmt: skip
    low = ours.low
    yield judged(
        "interlace over the area bound", f"at least {_OF_BOUND:g}",
        f"{low:.2f} is kept, {ours.high:.2f} is not", low >= _OF_BOUND, low=low, high=ours.high,
    )  # fmt: skip


def at_the_same_loads(ours: Search, other: Search, name: str) -> Iterator[Row]:
    """Requests in time at one offered load, ours over another's, with 95 %."""
    mine = {one.load: one for one in ours.trials}
    found: dict[float, Ratio] = {
        one.load: at_one_load(mine[one.load], one) for one in other.trials if one.load in mine
    }
    if found:
        words = ", ".join(f"{found[load]} at {load:.2f}" for load in sorted(found))
        ratios = {f"{load:.2f}": list(ratio) for load, ratio in found.items()}
        yield seen(f"in time at the same loads: interlace over {name}", words, ratios=ratios)
