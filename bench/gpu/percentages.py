"""Comparison 1, continued: the papers' systems on percentages of MPS, a process a partition.

A change of load is a change of plan, and here that is new processes, which takes seconds. So each
system begins at the load that it kept on green contexts, and goes on from there as time allows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from bench.fidelity.stand import Stand
from bench.gpu.bench import Bench
from bench.gpu.contestants import ON_MPS, Contestant
from bench.gpu.devices import lacking, maker
from bench.gpu.goodput import MODELS, told
from bench.gpu.lanes import ratio
from bench.gpu.opened import stand
from bench.gpu.rows import Row, failed, seen, skipped
from bench.gpu.search import Race, Search, race_of
from bench.gpu.world import demand

#: Where nothing is known of a system.
_FIRST_LOAD: Final = 0.4
#: A trial at another load brings processes down and up: not begun with less time than that.
_TRIAL_S: Final = 12.0
_MOST_TRIALS: Final = 4
#: Processes for one plan: each takes seconds to start, and half a GB of the GPU.
_MOST_PROCESSES: Final = 16
_LIMIT_S: Final = 60.0


async def rows(bench: Bench) -> AsyncIterator[Row]:
    """A row a system, with its goodput over the same system's on green contexts."""
    why = lacking(bench, "mps")
    if why:
        yield skipped("MPS percentages", why)
        return
    async with stand(bench, maker(bench, "mps", keep=True), MODELS) as opened:
        race = await race_of(bench, opened, 2.0, _MOST_TRIALS)
        async for row in contest(bench, opened, race):
            yield row


async def contest(bench: Bench, opened: Stand, race: Race) -> AsyncIterator[Row]:
    """One trial of each, then more of each, while there is time."""
    searches: list[Search] = []
    for one in ON_MPS:
        count = _processes(opened, race, one, green_load(bench, one))
        if count > _MOST_PROCESSES:
            yield skipped(f"{one.name} (mps)", f"its plan takes {count} processes at once")
        else:
            searches.append(Search(one, opened, race, green_load(bench, one)))
    for number in range(race.trials):
        for search in list(searches):
            if bench.left_s <= bench.size(_TRIAL_S if number else 0.0, 0.0):
                break
            try:
                await asyncio.wait_for(search.step(), _LIMIT_S)
            except Exception as error:
                searches.remove(search)
                yield failed(f"{search.one.name} (mps)", error)
    for search in searches:
        if search.trials:
            yield told(search, "mps")
            yield _beside_green(bench, search)
        else:
            yield skipped(f"{search.one.name} (mps)", "no time was left for it")


def _processes(opened: Stand, race: Race, one: Contestant, load: float) -> int:
    gpu = opened.device.gpu
    asked = demand(race.profiles, gpu, load, race.least_slo_ms)
    return len(one.plan(asked, gpu, race.profiles).partitions)


def green_load(bench: Bench, one: Contestant) -> float:
    """The load that the same system kept on green contexts, if it ran there."""
    found = _on_green(bench, one)
    return float(found["load"]) if found.get("kept") else _FIRST_LOAD


def _on_green(bench: Bench, one: Contestant) -> dict[str, float]:
    figures = (bench.findings("goodput") or {}).get(f"goodput of {one.name} (green)")
    return dict(figures or {})


def _beside_green(bench: Bench, search: Search) -> Row:
    green_rps = float(_on_green(bench, search.one).get("goodput_rps", 0.0))
    part = ratio(search.best.goodput_rps, green_rps)
    words = f"{part:.2f} in time, of those on green contexts" if green_rps else "not run on green"
    return seen(f"{search.one.name}: percentages of MPS over green contexts", words, part=part)
