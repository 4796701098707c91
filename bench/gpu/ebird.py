"""Comparison 3 with an engine: the input pool alone, then TF-Serving, N-Ebird and E-Ebird.

One model, all of the GPU, as E2bird has it: latencies at a low and a high load (Figure 13), and the
highest rate with 99 % in time (Figure 14). Load is in parts of the area bound.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Final

from bench.fidelity.stand import Stand
from bench.gpu.bench import Bench
from bench.gpu.contestants import Contestant
from bench.gpu.devices import maker, parted
from bench.gpu.mechanisms.published import (
    E_OVER_N,
    E_OVER_N_SAVED_PCT,
    E_OVER_TF,
    HIGH_SAVED_PCT,
    LOW_SAVED_PCT,
    N_OVER_TF,
)
from bench.gpu.mechanisms.sides import Published, Side, versus
from bench.gpu.opened import stand
from bench.gpu.pool import pool
from bench.gpu.rows import Row, failed, skipped
from bench.gpu.search import Race, Search, Trial, trial
from bench.gpu.world import DRY_SLO_MS, LEAST_SLO_MS, profiles_of

_MODEL: Final = ("resnet50",)
SYSTEMS: Final = (
    Contestant("TF-Serving", "green", "tfserving"),
    Contestant("N-Ebird", "green", "nebird"),
    Contestant("E-Ebird", "green", "e2bird"),
)
#: Of the highest load that TF-Serving kept.
_LOW, _HIGH = 0.2, 0.95


async def rows(bench: Bench) -> AsyncIterator[Row]:
    """The pool on and off, then the systems by pairs."""
    async with stand(bench, maker(bench, parted(bench), keep=True), _MODEL) as opened:
        try:
            yield await pool(opened, bench.size(100, 3))
        except Exception as error:
            yield failed("input pool", error)
        least_ms = bench.size(LEAST_SLO_MS, DRY_SLO_MS)
        profiles = await profiles_of(bench, opened)
        race = Race(profiles, bench.size(1.2, 0.2), bench.size(4, 1), least_ms)
        async for row in systems(bench, opened, race):
            yield row


async def systems(bench: Bench, opened: Stand, race: Race) -> AsyncIterator[Row]:
    """Figure 14, then Figure 13 at parts of what TF-Serving kept."""
    searches = [Search(one, opened, race) for one in SYSTEMS]
    for _ in range(race.trials):
        for search in searches:
            if bench.left_s > 0 or not search.trials:
                await search.step()
    best = {search.one.name: search.best for search in searches}
    for pair, published in (
        (("N-Ebird", "TF-Serving"), N_OVER_TF),
        (("E-Ebird", "N-Ebird"), E_OVER_N),
        (("E-Ebird", "TF-Serving"), E_OVER_TF),
    ):
        yield _highest(best, pair, published)
    for name, part in (("low", _LOW), ("high", _HIGH)):
        if bench.left_s <= 0:
            yield skipped(f"latencies at {name} load", "no time was left for it")
            continue
        load = part * best["TF-Serving"].load
        found = {one.name: await trial(opened, race, one, load) for one in SYSTEMS}
        for row in _latencies(name, found):
            yield row


def _side(one: Trial) -> Side:
    return {"rps": one.goodput_rps, "mean_ms": one.mean_ms, "p99_ms": one.p99_ms}


def _highest(best: Mapping[str, Trial], pair: tuple[str, str], published: Published) -> Row:
    one, other = (best[name] for name in pair)
    what = f"E2bird: goodput of {pair[0]} over {pair[1]}"
    kept = {name: best[name].kept for name in pair}
    return versus(what, _side(one), _side(other), "rps", published, load=one.load, kept=kept)


def _latencies(load: str, found: Mapping[str, Trial]) -> Iterator[Row]:
    """Mean latencies; what is published is a range over six networks, of which the least counts."""
    saved = {"low": LOW_SAVED_PCT, "high": HIGH_SAVED_PCT}[load]
    pairs = [("N-Ebird", "TF-Serving", saved)]
    if load == "high":
        pairs.append(("E-Ebird", "N-Ebird", E_OVER_N_SAVED_PCT))
    for one, other, (least, most) in pairs:
        figure = f"E2bird, Figure 13, {least:g} to {most:g} % saved"
        yield versus(
            f"E2bird: latency of {one} over {other}, {load} load",
            _side(found[one]), _side(found[other]), "mean_ms",
            Published(figure, 1.0 / (1.0 - least / 100.0)), published_pct=[least, most],
        )  # fmt: skip
