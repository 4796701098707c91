"""A stand on one of this GPU's devices, with models that need not be opened again."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from bench.fidelity.stand import MakeDevice, Stand
from bench.gpu.bench import Bench
from bench.gpu.devices import lacking, maker
from bench.gpu.models import remember, remembered, repository
from bench.gpu.rows import Row, failed, skipped


@asynccontextmanager
async def stand(bench: Bench, make: MakeDevice, names: Sequence[str] = ()) -> AsyncIterator[Stand]:
    """The device with these models, or all; closed afterwards.

    Where there are none of these names, as without a GPU, it has as many of those there are.
    """
    with repository(bench) as (root, all_names):
        wanted = [name for name in names or all_names if name in all_names]
        wanted = wanted or list(all_names[: len(names)])
        async with Stand(root, wanted, make, remembered(bench)) as opened:
            known = remembered(bench) | {m.name: m for m in opened.models()}
            remember(bench, list(known.values()))
            yield opened


async def on_each(
    bench: Bench,
    kinds: Sequence[str],
    names: Sequence[str],
    ask: Callable[[Stand, str], AsyncIterator[Row]],
) -> AsyncIterator[Row]:
    """The rows of each of these devices; a row for one that cannot be had, or that breaks."""
    for kind in kinds:
        why = lacking(bench, kind)
        if why:
            yield skipped(kind, why)
            continue
        try:
            async with stand(bench, maker(bench, kind), names) as opened:
                async for row in ask(opened, kind):
                    yield row
        except Exception as error:
            yield failed(kind, error)
