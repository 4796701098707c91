"""Comparison 4: the simulator, fed with this GPU's profiles, against this GPU.

The plan and the very arrivals of each live run are played again in virtual time. How much busy
neighbours slow a model is measured first, on halves of the GPU, and how executions spread there
just before and after each run; nothing is fitted to the runs.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping

from bench.fidelity.live import play
from bench.fidelity.measured import Measured, Pairs, half_pct, slowdowns
from bench.fidelity.stand import Stand
from bench.fidelity.twin import Figures, Gap, at_the_moment, busy, figures, gap, sent, twin
from bench.gpu.bench import Bench
from bench.gpu.contestants import CONTESTANTS, Contestant
from bench.gpu.devices import lacking, maker
from bench.gpu.opened import stand
from bench.gpu.rows import Row, judged, skipped
from bench.gpu.world import DRY_SLO_MS, LEAST_SLO_MS, demand, profiles_of
from interlace.core.hardware import Fleet
from interlace.core.profile import Profile
from interlace.device.simulated.device import device_factory
from interlace.device.simulated.physics import MECHANISMS, Physics
from interlace.sim.arrivals import merge_arrivals, poisson

_MODELS = ("resnet50", "bert_base", "mobilenet_v2")
_LOADS = (0.4, 0.7)
_SYSTEMS = ("interlace", "gpulet", "temporal")
_GOODPUT, _P99 = 0.03, 0.08


async def rows(bench: Bench) -> AsyncIterator[Row]:
    """A row a system and load, then whether both rank the systems alike."""
    why = lacking(bench, "green")
    if why:
        yield skipped("simulator", why)
        return
    async with stand(bench, maker(bench, "green", keep=True), _MODELS) as opened:
        profiles = await profiles_of(bench, opened)
        pairs = await slowdowns(opened, bench.size(0.15, 0.02))
        async for row in compared(bench, opened, profiles, pairs, bench.size(2.5, 0.3)):
            yield row
    await asyncio.sleep(0)


async def compared(
    bench: Bench, opened: Stand, profiles: Mapping[str, Profile], pairs: Pairs, seconds: float
) -> AsyncIterator[Row]:
    """Every system at every load, live and simulated."""
    systems = [one for one in CONTESTANTS if one.row in _SYSTEMS]
    goodputs: dict[str, list[tuple[float, float]]] = {one.name: [] for one in systems}
    least = bench.size(LEAST_SLO_MS, DRY_SLO_MS)
    for load in bench.size(_LOADS, _LOADS[:1]):
        for one in systems:
            live, simulated = await both(opened, profiles, pairs, one, load, seconds, least)
            goodputs[one.name].append((live.goodput_rps, simulated.goodput_rps))
            yield _row(one.name, load, live, simulated)
    yield _ranks(goodputs)


async def both(
    opened: Stand,
    profiles: Mapping[str, Profile],
    pairs: Pairs,
    one: Contestant,
    load: float,
    seconds: float,
    least_slo_ms: float,
) -> tuple[Figures, Figures]:
    """One case on the device and in virtual time."""
    gpu = opened.device.gpu
    asked = demand(profiles, gpu, load, least_slo_ms)
    plan = one.plan(asked, gpu, profiles)
    arrivals = merge_arrivals(
        {each.model: poisson(each.rows_per_s) for each in asked}, seconds, seed=1
    )
    looks = [await busy(opened, seconds / 10)]
    live = await play(opened, one.system, plan, asked, profiles, arrivals)
    looks.append(await busy(opened, seconds / 10))
    truth = at_the_moment(Measured(profiles, pairs), looks, half_pct(gpu))
    physics = Physics(costs=MECHANISMS["green"], interference=pairs, jitter=True, seed=1)
    again = sent(live, arrivals.models, seconds)
    fleet, device = Fleet((gpu,)), device_factory(physics)
    simulated = twin(one.system, fleet, plan, asked, profiles, truth, again, device)
    return figures(live), figures(simulated)


def _row(name: str, load: float, live: Figures, simulated: Figures) -> Row:
    if not live.goodput_rps or not simulated.goodput_rps:
        words = f"{live.goodput_rps:.0f} in time per s, simulated {simulated.goodput_rps:.0f}"
        return judged(f"{name} at load {load:g}", "requests in time", words, False)
    off: Gap = gap(live, simulated)
    near = abs(off.goodput) <= _GOODPUT and abs(off.p99) <= _P99
    return judged(
        f"{name} at load {load:g}", "goodput within 3 %, p99 within 8 %",
        f"goodput {100 * off.goodput:+.1f} %, p50 {100 * off.p50:+.1f} %, "
        f"p99 {100 * off.p99:+.1f} %",
        near, load=load, goodput=off.goodput, p50=off.p50, p99=off.p99,
        live_rps=live.goodput_rps, live_p99_ms=live.p99_ms,
    )  # fmt: skip


def _ranks(goodputs: Mapping[str, list[tuple[float, float]]]) -> Row:
    """Systems by goodput over all loads, seen and simulated."""
    orders = [
        sorted(goodputs, key=lambda name: -sum(pair[side] for pair in goodputs[name]))
        for side in (0, 1)
    ]
    words = " > ".join(orders[0]), " > ".join(orders[1])
    return judged("ranking of systems", words[0], words[1], orders[0] == orders[1])
