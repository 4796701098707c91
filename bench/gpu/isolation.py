"""Comparison 3: how much neighbours slow a model.

First in this process, by the GPU's clock: a model on half of the SMs, alone and beside kernels on
the other half that press on arithmetic, L2 or device memory, or beside copies over the link; the
same on streams over all SMs. Then through the devices: requests of a model on half of the GPU while
another fills the rest, on green contexts, under MPS and on streams.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Final, NamedTuple

from bench.fidelity.measured import half_pct
from bench.fidelity.stand import Stand, cores
from bench.fidelity.twin import figures
from bench.gpu.bench import Bench
from bench.gpu.cold_models import ColdRun, ColdStand, cold_run, cold_stand
from bench.gpu.contestants import protecting, scaled
from bench.gpu.devices import KINDS, green_gpu, lacking
from bench.gpu.lanes import allocated, mapped, quantile, ratio
from bench.gpu.opened import on_each, stand
from bench.gpu.rows import Row, attempt, judged, seen, skipped
from bench.gpu.search import Race, played, race_of
from bench.gpu.world import demand
from interlace.core.model import Model
from interlace.device.cuda.lanes import Lane
from interlace.policy.catalog import resolve
from interlace.profiling.cuda.readers import SIZES, ReaderKernels
from interlace.sim.record import RunRecord

#: The protected one, and its neighbour.
_MODELS: Final = ("resnet50", "bert_base")
_WEIGHTS_BYTES: Final = 1 << 30
_COPY_BYTES: Final = 64 << 20
#: How long a neighbour presses, in ms; a copy of that size takes about one.
_PRESSED_MS: Final = 300
_ALONE: Final = 100
_MOST: Final = 1.10


class Neighbour(NamedTuple):
    """Work that is launched on a lane and keeps something busy for a while."""

    presses_on: str
    launch: Callable[[Lane], None]


async def rows(bench: Bench) -> AsyncIterator[Row]:
    """Kernels and copies as neighbours, then models."""
    async with stand(bench, cores, _MODELS[:1]) as opened:
        (model,) = opened.models()
        with bench.backend() as backend:
            for kind in ("green", "streams"):
                why = lacking(bench, kind)
                if why:
                    yield skipped(f"kernels as neighbours on {kind}", why)
                    continue
                memory = bench.size((_WEIGHTS_BYTES, _WEIGHTS_BYTES), (1 << 20, 1 << 20))
                with cold_stand(bench, backend, *memory, kind) as there:
                    ask = partial(kernels, bench, there, model, kind)
                    for row in attempt(f"kernels as neighbours on {kind}", ask):
                        yield row

    async def requests(opened: Stand, kind: str) -> AsyncIterator[Row]:
        yield await protected(opened, await race_of(bench, opened, 2.0, 1), kind)

    async for row in on_each(bench, KINDS, _MODELS, requests):
        yield row


def kernels(bench: Bench, there: ColdStand, model: Model, kind: str) -> Iterator[Row]:
    """A replay alone, then beside each neighbour; on green contexts each has half of the SMs."""
    half, driver = half_pct(green_gpu(bench)), there.backend.driver
    with ExitStack() as steps:
        lane = there.lanes.carve("neighbour", half)
        steps.callback(there.lanes.release, "neighbour")
        run = steps.enter_context(cold_run(there, model, half))
        run.cold_ms(run.all)
        alone = [run.gpu_ms() for _ in range(bench.size(_ALONE, 3))]
        for one in _neighbours(bench, there, steps):
            beside = _beside(run, lane, one, there)
            driver.synchronize(lane.stream)  # the next neighbour must not meet this one
            p50, p99 = (ratio(quantile(beside, q), quantile(alone, q)) for q in (0.5, 0.99))
            words = f"p50 {p50:.2f}, p99 {p99:.2f} of alone over {len(beside)} runs"
            what = f"{model.name} on {kind} beside {one.presses_on}"
            figures = {"p50": p50, "p99": p99, "alone_ms": alone, "beside_ms": beside}
            if kind == "green":
                yield judged(
                    what, f"p99 at most {_MOST:g} of alone", words, p99 <= _MOST, **figures
                )
            else:
                yield seen(what, words, **figures)


def _neighbours(bench: Bench, there: ColdStand, steps: ExitStack) -> Iterator[Neighbour]:
    driver, press_ms = there.backend.driver, bench.size(_PRESSED_MS, 1)
    readers = ReaderKernels(there.backend, bench.size(SIZES, dict.fromkeys(SIZES, 1 << 12)))
    steps.callback(readers.close)
    nbytes = bench.size(_COPY_BYTES, 1 << 12)
    target = steps.enter_context(allocated(driver, nbytes))
    source = steps.enter_context(mapped(driver, nbytes)).device

    def launch(kernel: int, read: tuple[int, ...], lane: Lane) -> None:
        # counted in device memory: a count on the host would press on the link
        words = (*read, press_ms * 1_000_000, target)
        driver.launch(kernel, (4 * lane.sms, 1, 1), (512, 1, 1), lane.stream, words)

    def copies(lane: Lane) -> None:
        for _ in range(press_ms):
            driver.copy(target, source, nbytes, lane.stream)

    yield Neighbour("arithmetic", partial(launch, there.backend.kernels.spin, ()))
    for one in readers.kinds:
        read = partial(launch, one.kernel, (one.source, one.nbytes))
        yield Neighbour({"l2": "the L2 cache", "dram": "device memory"}[one.what], read)
    yield Neighbour("copies over the link", copies)


def _beside(run: ColdRun, lane: Lane, one: Neighbour, there: ColdStand) -> list[float]:
    """GPU times of the runs that began while the neighbour pressed; at least one."""
    driver = there.backend.driver
    end = driver.event()
    try:
        one.launch(lane)
        driver.record(end, lane.stream)
        taken = [run.gpu_ms()]
        while not driver.ended(end):
            taken.append(run.gpu_ms())
    finally:
        driver.destroy_event(end)
    return taken[: max(1, len(taken) - 1)]  # during the last one it ended


async def protected(opened: Stand, race: Race, kind: str) -> Row:
    """p99 of a model on half the GPU while the other half is full, over p99 while it is idle."""
    gpu = opened.device.gpu
    whole = demand(race.profiles, gpu, 1.0, race.least_slo_ms)
    asked = (scaled(whole[:1], 0.3 * len(whole))[0], *scaled(whole[1:], 0.9))
    plan, row = protecting(asked, gpu, half_pct(gpu)), resolve("triton")
    quiet = (asked[0], *scaled(asked[1:], 1e-6))
    p99s_ms = [
        _p99_ms(await played(opened, race, row, plan, each, race.seconds), asked[0].model)
        for each in (quiet, asked)
    ]
    slower = ratio(p99s_ms[1], p99s_ms[0])
    return judged(
        f"p99 of requests beside a full other half ({kind})", f"at most {_MOST:g} of alone",
        f"{slower:.2f} of alone ({p99s_ms[0]:.2f} to {p99s_ms[1]:.2f} ms)", slower <= _MOST,
        alone_ms=p99s_ms[0], beside_ms=p99s_ms[1],
    )  # fmt: skip


def _p99_ms(record: RunRecord, model: str) -> float:
    served = [one for one in record.served if one.model == model]
    part = RunRecord(record.from_ms, record.until_ms, record.gpus, served, (), ())
    return figures(part).p99_ms
