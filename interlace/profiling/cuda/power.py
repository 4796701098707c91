"""Power, energy and DRAM pressure of batches that run back to back, seen from outside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

from interlace.core.messages import Load, Unload
from interlace.core.model import Model
from interlace.core.profile import PowerDraw, Profile
from interlace.profiling.corun_partitions import keep_busy
from interlace.profiling.cuda.nvml import GpmCounters, Nvml, NvmlError
from interlace.profiling.rig import MeasureError, Rig
from interlace.profiling.samples import SampleInputs

_TIMEOUT_S = 120.0
_NOTHING = GpmCounters(None, None)
#: Before a window: the counter of energy lags, and clocks and power settle.
_SETTLE_S = 0.3


class PowerSample(NamedTuple):
    """One (batch, share): its power, and what GPM counted where it counts."""

    draw: PowerDraw
    counters: GpmCounters


class PowerWindow(NamedTuple):
    """What NVML counted over a time."""

    seconds: float
    joules: float
    counters: GpmCounters

    @property
    def power_w(self) -> float:
        return self.joules / self.seconds if self.seconds > 0 else 0.0


class PowerMeter:
    """Windows of a GPU's energy and utilisation on the clock of a rig.

    Where GPM is refused, energy is counted all the same. The energy counter is renewed about every
    100 ms, so a window is that uncertain at both ends: it should be a second or longer.
    """

    def __init__(self, rig: Rig, nvml: Nvml) -> None:
        self._clock = rig.clock
        self._nvml = nvml
        self._counts = nvml.counts

    @asynccontextmanager
    async def window(self) -> AsyncIterator[list[PowerWindow]]:
        """What the block took; the list holds it once the block has ended.

        Raises:
            NvmlError: the GPU does not count its energy, or NVML failed.
        """
        seen: list[PowerWindow] = []
        first = self._sample()
        joules, began_ms = self._nvml.energy_j(), self._clock.now_ms()
        yield seen
        seconds = (self._clock.now_ms() - began_ms) / 1000.0
        joules = self._nvml.energy_j() - joules
        second = self._sample()
        known = first is not None and second is not None
        seen.append(
            PowerWindow(seconds, joules, self._nvml.between(first, second) if known else _NOTHING)
        )

    def _sample(self) -> Any:
        if not self._counts:
            return None
        try:
            return self._nvml.sample()
        except NvmlError:
            self._counts = False
            return None


async def idle_w(rig: Rig, meter: PowerMeter, seconds: float) -> float:
    """Power with nothing running; partitions and weights may be there."""
    async with meter.window() as seen:
        await _pass(rig, seconds)
    return seen[0].power_w


async def measure_power(
    rig: Rig,
    meter: PowerMeter,
    model: Model,
    points: Mapping[int, Sequence[int]],
    idle: float,
    seconds: float = 1.0,
) -> dict[tuple[int, int], PowerSample]:
    """Power and counters by (batch, share), the GPU kept full for ``seconds`` each.

    ``points`` are batches by share.

    Raises:
        MeasureError: the model does not load or fails.
        NvmlError: as ``PowerMeter.window``.
    """
    found: dict[tuple[int, int], PowerSample] = {}
    inputs = SampleInputs(model, rig.arena)
    try:
        for share_pct, batches in points.items():
            partition = await rig.partition(share_pct, _TIMEOUT_S)
            async with _loaded(rig, partition, model, batches):
                for batch in batches:
                    one = await _one(rig, meter, partition, inputs, batch, idle, seconds)
                    found[batch, share_pct] = one
    finally:
        inputs.release()
    return found


def power_points(profile: Profile) -> dict[int, tuple[int, ...]]:
    """Shares and batches worth a second each: the smallest, the middle and the largest of both.

    Pressure and power change smoothly, and lines between these are near enough.
    """
    shares = sorted({share for _, share in profile.points})
    by_share: dict[int, tuple[int, ...]] = {}
    for share in _three(shares):
        by_share[share] = _three(sorted(batch for batch, at in profile.points if at == share))
    return by_share


def _three(values: Sequence[int]) -> tuple[int, ...]:
    places = {0, len(values) // 2, len(values) - 1} if values else set()
    return tuple(values[place] for place in sorted(places))


async def _one(
    rig: Rig,
    meter: PowerMeter,
    partition: str,
    inputs: SampleInputs,
    batch: int,
    idle: float,
    seconds: float,
) -> PowerSample:
    await keep_busy(rig, partition, inputs, batch, _SETTLE_S, depth=2)
    async with meter.window() as seen:
        runs = await keep_busy(rig, partition, inputs, batch, seconds, depth=2)
    window = seen[0]
    if window.seconds <= 0 or window.joules <= 0:
        raise MeasureError(f"the GPU's counter of energy stood still for {window.seconds:.2f} s")
    rate = len(runs) * batch / window.seconds
    return PowerSample(PowerDraw(window.power_w, idle, rate), window.counters)


@asynccontextmanager
async def _loaded(
    rig: Rig, partition: str, model: Model, batches: Sequence[int]
) -> AsyncIterator[None]:
    await rig.do(Load(rig.gpu.id, partition, model.key, tuple(batches)), _TIMEOUT_S)
    try:
        yield
    finally:
        with suppress(MeasureError):  # the partition died with the model
            await rig.do(Unload(rig.gpu.id, partition, model.key), _TIMEOUT_S)


async def _pass(rig: Rig, seconds: float) -> None:
    passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    rig.clock.call_at(rig.clock.now_ms() + seconds * 1000.0, lambda: passed.set_result(None))
    await passed
