"""Comparison 3 with an engine: the input pool alone, then TF-Serving, N-Ebird and E-Ebird.

One model, all of the GPU, as E2bird has it: latencies at a low and a high load (Figure 13), and the
highest rate with 99 % in time (Figure 14). Load is in parts of the area bound.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Final

from bench.fidelity.measured import half_pct
from bench.fidelity.stand import Opened, Stand
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
from bench.gpu.mechanisms.sides import Published, Side, side, versus
from bench.gpu.opened import stand
from bench.gpu.rows import Row, failed, skipped
from bench.gpu.search import Race, Search, Trial, race_of, trial
from bench.gpu.sharing import cpu_s
from interlace.core.messages import (
    CopyInputs,
    CreatePartition,
    Load,
    ReleasePartition,
    WorkFinished,
)
from interlace.core.request import Batch, Request

_MODEL: Final = ("resnet50",)
SYSTEMS: Final = (
    Contestant("TF-Serving", "tfserving"),
    Contestant("N-Ebird", "nebird"),
    Contestant("E-Ebird", "e2bird"),
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
        async for row in systems(bench, opened, await race_of(bench, opened, 1.2, 4)):
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


_LIMIT_S: Final = 60.0
_NEVER_MS: Final = 1e12
_NAME: Final = "pool"
#: One window is read by a batch while the other is filled.
_WINDOWS: Final = 2
_WARM: Final = 2


async def pool(opened: Stand, count: int) -> Row:
    """Full batches one at a time: staged beside the one before, or gathered in the graph.

    Latency is from when all rows are there; the rate counts what staging costs, too.
    """
    gpu = opened.device.gpu
    one = next(iter(opened.opened.values()))
    await opened.rig.do(CreatePartition(gpu.id, _NAME, half_pct(gpu)), _LIMIT_S)
    largest = (one.model.signature.max_batch,)
    await opened.rig.do(Load(gpu.id, _NAME, one.model.key, largest), _LIMIT_S)
    sides = {staged: await _one_way(opened, one, count, staged) for staged in (True, False)}
    await opened.rig.do(ReleasePartition(gpu.id, _NAME), _LIMIT_S)
    what = f"input pool: {one.model.name}, a full batch staged on arrival, over gathered"
    return versus(what, sides[True], sides[False], "p50_ms")


async def _one_way(opened: Stand, one: Opened, count: int, staged: bool) -> Side:
    took_ms: list[float] = []
    rows = one.model.signature.max_batch
    ready = _members(opened, one)
    if staged:
        await _staged(opened, ready, 0)
    for number in range(_WARM + count):
        if number == _WARM:
            took_ms.clear()
            began_s, began_cpu_s = time.perf_counter(), cpu_s(opened)
        window = number % _WINDOWS
        slot = window * rows if staged else None
        batch = Batch(opened.rig.next_id(), one.model.key, ready, rows, slot=slot)
        ready = _members(opened, one)
        running = opened.rig.run(_NAME, batch, _LIMIT_S)
        if staged:
            done, _ = await asyncio.gather(running, _staged(opened, ready, (window + 1) % _WINDOWS))
        else:
            done = await running
        took_ms.append(done.took_ms)
    seconds, spent_s = time.perf_counter() - began_s, cpu_s(opened) - began_cpu_s
    found = side(took_ms, rows, cpu_ms=1000.0 * spent_s / count)
    return {**found, "rps": rows * count / seconds}


def _members(opened: Stand, one: Opened) -> tuple[Request, ...]:
    rows = one.model.signature.max_batch
    return tuple(one.request(opened.rig.next_id(), 0.0, _NEVER_MS) for _ in range(rows))


async def _staged(opened: Stand, members: tuple[Request, ...], window: int) -> None:
    """All of them copied into their slots of the ring."""
    slots = _WINDOWS * len(members)
    await asyncio.gather(
        *(
            _stage(
                opened, CopyInputs(opened.device.gpu.id, request, window * len(members) + at, slots)
            )
            for at, request in enumerate(members)
        )
    )


async def _stage(opened: Stand, work: CopyInputs) -> None:
    """One copy.

    Raises:
        RuntimeError: the device refused it.
    """
    ended: asyncio.Future[WorkFinished] = asyncio.get_running_loop().create_future()
    opened.device.do(work, ended.set_result)
    failure = (await asyncio.wait_for(ended, _LIMIT_S)).failure
    if failure is not None:
        raise RuntimeError(failure.detail)
