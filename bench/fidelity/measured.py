"""What is measured of the machine before any run: profiles, and how busy neighbours slow them."""

import asyncio
import statistics
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from bench.fidelity.stand import Opened, Stand
from interlace.core.hardware import Gpu
from interlace.core.messages import CreatePartition, Load, ReleasePartition
from interlace.core.profile import Profile
from interlace.core.request import Batch
from interlace.perf.interference import CoRunner
from interlace.profiling.corun import corun_share_pct
from interlace.profiling.sweep import SweepSettings

_TIMEOUT_S: Final = 60.0
#: Pairs are measured in so many rounds: in any one of them the machine may have other guests.
_ROUNDS: Final = 3
#: Sizes of the batches that pairs are measured with, in turn.
_ROWS: Final = (1, 4)

#: Latencies of executions by rows, in ms.
Samples = Mapping[int, Sequence[float]]


@dataclass(frozen=True, slots=True)
class Pairs:
    """Slowdown of a model beside another, each on its half of the device: an ``Interference``."""

    factors: Mapping[tuple[str, str], float]

    def __call__(self, runner: CoRunner, neighbours: Sequence[CoRunner]) -> float:
        found = [self.factors.get((runner.model, other.model), 1.0) for other in neighbours]
        return max([1.0, *found])


@dataclass(frozen=True, slots=True)
class Measured:
    """The machine as it was before the runs."""

    profiles: Mapping[str, Profile]
    pairs: Pairs


async def measure(stand: Stand, settings: SweepSettings, seconds: float = 0.6) -> Measured:
    """Every model alone, then every pair side by side for ``seconds`` in each round."""
    profiles = await stand.profiles(settings)
    await stand.rig.close()
    return Measured(profiles, await slowdowns(stand, seconds))


async def slowdowns(stand: Stand, seconds: float) -> Pairs:
    """Every pair of models side by side, each on half the device."""
    seen: dict[tuple[str, str], list[float]] = {}
    models = list(stand.opened)
    async with halves(stand) as names:
        for _ in range(_ROUNDS):
            for index, one in enumerate(models):
                for other in models[index:]:
                    pair = await _side_by_side(stand, names, (one, other), seconds)
                    seen.setdefault((one, other), []).append(pair[0])
                    seen.setdefault((other, one), []).append(pair[1])
    return Pairs({pair: statistics.median(found) for pair, found in seen.items()})


def half_pct(gpu: Gpu) -> int:
    """The largest share of which two stand side by side."""
    share_pct = corun_share_pct(gpu, 2)
    assert share_pct is not None, f"{gpu.id} cannot be parted"
    return share_pct


@asynccontextmanager
async def halves(stand: Stand) -> AsyncIterator[tuple[str, str]]:
    """Two partitions of half the device each, with every model loaded."""
    names = ("left", "right")
    gpu, share_pct = stand.device.gpu.id, half_pct(stand.device.gpu)
    for name in names:
        await stand.rig.do(CreatePartition(gpu, name, share_pct), _TIMEOUT_S)
        for key, one in stand.opened.items():
            most = max(1, one.model.signature.max_batch)
            sizes = tuple(sorted({min(rows, most) for rows in _ROWS}))
            await stand.rig.do(Load(gpu, name, key, sizes), _TIMEOUT_S)
    try:
        yield names
    finally:
        for name in names:
            await stand.rig.do(ReleasePartition(gpu, name), _TIMEOUT_S)


async def sampled(
    stand: Stand, name: str, models: Sequence[Opened], seconds: float
) -> Mapping[str, Samples]:
    """Executions of the models in turn, a few sizes each, for so long."""
    end_ms = stand.clock.now_ms() + seconds * 1000.0
    taken_ms: dict[str, dict[int, list[float]]] = {one.model.key: {} for one in models}
    while stand.clock.now_ms() < end_ms or not taken_ms[models[-1].model.key]:
        for wanted in _ROWS:
            for one in models:
                rows = min(wanted, max(1, one.model.signature.max_batch))
                number = stand.rig.next_id()
                requests = tuple(one.request(number + i, 0.0, 1e9) for i in range(rows))
                batch = Batch(number, one.model.key, requests, rows)
                took_ms = (await stand.rig.run(name, batch, _TIMEOUT_S)).took_ms
                taken_ms[one.model.key].setdefault(rows, []).append(took_ms)
    return taken_ms


def slowdown(beside: Samples, alone: Samples) -> float:
    """Ratio of the medians, the mean of those of each size."""
    ratios = [statistics.median(beside[n]) / statistics.median(alone[n]) for n in alone]
    return statistics.mean(ratios)


async def _side_by_side(
    stand: Stand, names: tuple[str, str], pair: tuple[str, str], seconds: float
) -> tuple[float, float]:
    """How much each is slower beside the other than alone, in turn within one measurement."""
    sides = [(name, [stand.opened[key]]) for name, key in zip(names, pair, strict=True)]
    alone = [await sampled(stand, name, models, seconds / 2) for name, models in sides]
    beside = await asyncio.gather(*(sampled(stand, name, one, seconds) for name, one in sides))
    first, second = (
        slowdown(b[key], a[key]) for key, a, b in zip(pair, alone, beside, strict=True)
    )
    return first, second
