"""A stand on one of this GPU's devices, with models that need not be opened again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from bench.fidelity.stand import MakeDevice, Stand
from bench.gpu.bench import Bench
from bench.gpu.models import remember, remembered, repository


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
