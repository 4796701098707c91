"""What is measured of the machine before any run: profiles, and how busy neighbours slow them."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.fidelity.stand import Opened, Stand
from interlace.core.hardware import Gpu
from interlace.core.messages import Carve, Load, Release
from interlace.core.profile import Profile
from interlace.core.request import Batch
from interlace.measure.corun import company
from interlace.measure.sweep import Settings
from interlace.perf.interference import Runner

_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Pairs:
    """Slowdown of a model beside another, each on its half of the device: an ``Interference``."""

    factors: Mapping[tuple[str, str], float]

    def __call__(self, runner: Runner, neighbours: Sequence[Runner]) -> float:
        found = [self.factors.get((runner.model, other.model), 1.0) for other in neighbours]
        return max([1.0, *found])


@dataclass(frozen=True, slots=True)
class Measured:
    """The machine as it was just before the runs."""

    profiles: Mapping[str, Profile]
    pairs: Pairs


async def measure(stand: Stand, settings: Settings, seconds: float = 1.0) -> Measured:
    """Every model alone, then every pair side by side for ``seconds``."""
    profiles = await stand.profiles(settings)
    await stand.rig.close()
    return Measured(profiles, await slowdowns(stand, seconds))


async def slowdowns(stand: Stand, seconds: float) -> Pairs:
    """Every pair of models side by side for ``seconds``, each on half the device."""
    names = [await _partition(stand, side) for side in ("left", "right")]
    factors: dict[tuple[str, str], float] = {}
    models = list(stand.opened)
    for index, one in enumerate(models):
        for other in models[index:]:
            pair = await _side_by_side(stand, names, (one, other), seconds)
            factors[one, other], factors[other, one] = pair
    for name in names:
        await stand.rig.do(Release(stand.device.gpu.id, name), _TIMEOUT_S)
    return Pairs(factors)


def half_pct(gpu: Gpu) -> int:
    """The largest share of which two stand side by side."""
    share_pct = company(gpu, 2)
    assert share_pct is not None, f"{gpu.id} cannot be parted"
    return share_pct


async def _partition(stand: Stand, name: str) -> str:
    gpu = stand.device.gpu.id
    await stand.rig.do(Carve(gpu, name, half_pct(stand.device.gpu)), _TIMEOUT_S)
    for key in stand.opened:
        await stand.rig.do(Load(gpu, name, key), _TIMEOUT_S)
    return name


async def _side_by_side(
    stand: Stand, names: list[str], pair: tuple[str, str], seconds: float
) -> tuple[float, float]:
    """Median latency of each beside the other over that alone, in turn within one measurement."""
    alone = [
        await _median_ms(stand, name, stand.opened[key], seconds / 2)
        for name, key in zip(names, pair, strict=True)
    ]
    beside = await asyncio.gather(
        *(
            _median_ms(stand, name, stand.opened[key], seconds)
            for name, key in zip(names, pair, strict=True)
        )
    )
    first, second = (b / a for a, b in zip(alone, beside, strict=True))
    return first, second


async def _median_ms(stand: Stand, name: str, opened: Opened, seconds: float) -> float:
    end_ms = stand.clock.now_ms() + seconds * 1000.0
    taken_ms: list[float] = []
    rows = max(1, opened.model.signature.max_batch // 2)
    while stand.clock.now_ms() < end_ms or len(taken_ms) < 5:
        number = stand.rig.next_id()
        requests = tuple(opened.request(number + i, 0.0, 1e9) for i in range(rows))
        batch = Batch(number, opened.model.key, requests, rows)
        taken_ms.append((await stand.rig.run(name, batch, _TIMEOUT_S)).took_ms)
    return statistics.median(taken_ms)
