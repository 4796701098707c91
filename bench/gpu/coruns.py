"""Pairs and triples of models side by side, kept beside the profiles of this kind of GPU."""

from collections.abc import AsyncIterator

from bench.fidelity.stand import Stand
from bench.gpu.bench import Bench
from bench.gpu.devices import maker, parted
from bench.gpu.opened import stand
from bench.gpu.profiles import NO_PROFILE, NO_TIME, Kept, known, store_of
from bench.gpu.rows import Row, failed, seen, skipped
from interlace.profiling.corun import CoRun, CoRunModel, batch_for, corun_share_pct
from interlace.profiling.corun_file import corun_path, save_coruns
from interlace.profiling.corun_partitions import measure_coruns

_NAMES = {2: "pairs", 3: "triples"}
#: Six models make 21 pairs, ten make 55: all where there is time for them.
_SIDES, _ALL_S = 6, 120.0


async def rows(bench: Bench) -> AsyncIterator[Row]:
    """A row a pair or triple, as far as time goes: two thirds of it for pairs."""
    async with stand(bench, maker(bench, parted(bench), keep=True)) as opened:
        kept = known(bench, opened.models())
        kept = kept[: len(kept) if bench.left_s > _ALL_S else _SIDES]
        if not kept:
            yield skipped("side by side", NO_PROFILE)
            return
        seen_all: list[CoRun] = []
        pairs_s = bench.left_s / 3
        for count, spare_s in ((2, pairs_s), (3, 0.0)):
            try:
                async for row in _groups(bench, opened, kept, count, spare_s, seen_all):
                    yield row
            except Exception as error:
                yield failed(_NAMES[count], error)
        yield _kept(bench, opened, kept, seen_all)


async def _groups(
    bench: Bench, opened: Stand, kept: list[Kept], count: int, spare_s: float, seen_all: list[CoRun]
) -> AsyncIterator[Row]:
    """Groups of that many, until only ``spare_s`` are left."""
    share_pct = corun_share_pct(opened.device.gpu, count)
    if share_pct is None:
        yield skipped(_NAMES[count], f"no {count} partitions may stand side by side")
        return
    sides = [
        CoRunModel(one.model, batch_for(one.profile, share_pct, one.model.terms.slo_ms))
        for one in kept
    ]
    found = measure_coruns(opened.rig, sides, share_pct, count, bench.size(0.2, 0.02))
    async for group in found:
        seen_all += group
        if group:
            yield _row(group)
        if bench.left_s <= spare_s:
            yield skipped(f"more {_NAMES[count]}", NO_TIME)
            break
    await found.aclose()  # type: ignore[attr-defined]


def _row(group: list[CoRun]) -> Row:
    names = " + ".join(one.runner.model for one in group)
    words = (
        f"{one.runner.model} {one.slowdown:.2f} over {100 * one.overlap:.0f} % of its time"
        for one in group
    )
    return seen(
        f"side by side: {names}", ", ".join(words),
        runs=[
            {
                "model": one.runner.model,
                "batch": one.runner.batch,
                "share_pct": one.runner.share_pct,
                "alone_ms": one.alone_ms,
                "beside_ms": one.beside_ms,
                "overlap": one.overlap,
                "executions": one.executions,
            }
            for one in group
        ],
    )  # fmt: skip


def _kept(bench: Bench, opened: Stand, kept: list[Kept], found: list[CoRun]) -> Row:
    kind = opened.device.gpu.kind
    path = corun_path(store_of(bench).folder, kind)
    save_coruns(path, kind, {one.model.name: one.model.digest for one in kept}, found)
    worst = max((one.full_slowdown for one in found), default=1.0)
    words = f"{len(found)} runs kept, largest slowdown {worst:.2f}"
    return seen("side by side, in all", words, runs=len(found), worst=worst)
