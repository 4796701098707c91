"""Comparison 3: each mechanism of the papers on and off, on this GPU.

Sync-lite, GPU-DMA, Param-Share and Multi-Model of the primitives paper (Figure 6, Tables I, II, IV)
on bare lanes, and the input pool of E2bird (Figures 7, 13, 14) through a device. Latency, rate, CPU
time and memory, whichever the mechanism is for. Nothing is expected but the sign.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from bench.fidelity.measured import half_pct
from bench.fidelity.stand import Opened, Stand
from bench.gpu.bench import Bench
from bench.gpu.checks import layers
from bench.gpu.checks.completion import compared as completions
from bench.gpu.devices import lacking, maker
from bench.gpu.flowing import flow
from bench.gpu.lanes import allocated, captured, lanes, mapped, middle, quantile, ratio, words
from bench.gpu.opened import stand
from bench.gpu.rows import Row, attempt, failed, judged, skipped
from interlace.core.messages import Carve, Load, Release, Stage
from interlace.core.request import Batch, Request
from interlace.device.cuda.engine.backend import Backend

_ROWS, _ROW_BYTES = 32, 150_528
_LIMIT_S: Final = 60.0
_NEVER_MS: Final = 1e12


def rows(bench: Bench) -> Iterator[Row]:
    """Five mechanisms."""
    with bench.backend() as backend:
        yield from attempt("Sync-lite", lambda: completions(bench, backend, ("flags", "blocking")))
        yield from attempt("GPU-DMA", lambda: gather(bench, backend))
        yield from attempt("Param-Share", lambda: weights(bench, backend))
        yield from attempt("Multi-Model", lambda: together(bench, backend))
    yield from flow(_pool(bench))


def gather(bench: Bench, backend: Backend) -> Iterable[Row]:
    """32 scattered pictures and a convolution: gathered in the graph, or copied row by row."""
    driver, (count, size) = backend.driver, bench.size((_ROWS, _ROW_BYTES), (4, 64))
    body = layers.convolution(bench, backend.torch_device)
    with ExitStack() as stack:
        cut = stack.enter_context(lanes(driver))
        lane = cut.first(64)
        host = stack.enter_context(mapped(driver, 2 * count * size))
        table = stack.enter_context(mapped(driver, 8 * (count + 1)))
        target = stack.enter_context(allocated(driver, count * size))
        entries = words(table, count + 1)
        entries[0] = count
        places = [host.device + 2 * index * size for index in range(count)]
        entries[1:] = places
        arguments = (table.device + 8, table.device, target, size, count)
        launch = partial(
            driver.launch, backend.kernels.gather_rows, (16, 1, 1), (512, 1, 1), lane.stream,
            arguments,
        )  # fmt: skip

        def gathered() -> None:
            launch()
            body()

        with_it = stack.enter_context(captured(backend, lane.stream, gathered))
        without = stack.enter_context(captured(backend, lane.stream, body))

        def copied() -> None:
            for index, place in enumerate(places):
                driver.copy(target + index * size, place, size, lane.stream)
            driver.launch_graph(without, lane.stream)

        on = partial(driver.launch_graph, with_it, lane.stream)
        repeat = bench.size(200, 3)
        ways = [_taken(backend, lane.stream, way, repeat) for way in (on, copied)]
    yield _compared("GPU-DMA: inputs gathered by a kernel, over copied row by row", *ways)


Taken = tuple[list[float], float]


def _taken(backend: Backend, stream: int, go: Callable[[], Any], count: int) -> Taken:
    """Wall times of launches, one at a time, and CPU time of one, in ms."""
    found: list[float] = []
    for _ in range(3):
        go()
        backend.driver.synchronize(stream)
    cpu_s = time.thread_time()
    for _ in range(count):
        began_s = time.perf_counter()
        go()
        backend.driver.synchronize(stream)
        found.append((time.perf_counter() - began_s) * 1000.0)
    return found, (time.thread_time() - cpu_s) * 1000.0 / count


def _compared(what: str, on: Taken, off: Taken) -> Row:
    p50s = [quantile(one[0], 0.5) for one in (on, off)]
    p99s = [quantile(one[0], 0.99) for one in (on, off)]
    return judged(
        what, "less time", f"p50 {p50s[0]:.3f} over {p50s[1]:.3f} ms, p99 {p99s[0]:.3f} over "
        f"{p99s[1]:.3f}, CPU {on[1]:.3f} over {off[1]:.3f}",
        p50s[0] < p50s[1], on_ms=p50s[0], off_ms=p50s[1], on_p99_ms=p99s[0], off_p99_ms=p99s[1],
        on_cpu_ms=on[1], off_cpu_ms=off[1],
    )  # fmt: skip


def weights(bench: Bench, backend: Backend) -> Iterable[Row]:
    """GPU memory of one network on four lanes, its weights once or four times."""
    import torch

    device, width = backend.torch_device, bench.size(8192, 16)
    held: dict[str, int] = {}
    for name, shared in (("on", True), ("off", False)):
        before = _allocated_bytes(device)
        first = torch.nn.Linear(width, width, device=device).requires_grad_(False)
        kept = [first if shared else _copy_of(first) for _ in range(4)]
        held[name] = _allocated_bytes(device) - before or _bytes_of(kept)
        del first, kept
    part = ratio(held["on"], held["off"])
    yield judged(
        "Param-Share: memory of four lanes with the weights once, over four times",
        "a quarter to a fifth", f"{part:.2f}", part <= 0.26, on_bytes=held["on"],
        off_bytes=held["off"],
    )  # fmt: skip


def _copy_of(module: Any) -> Any:
    import copy

    return copy.deepcopy(module)


def _allocated_bytes(device: str) -> int:
    import torch

    return 0 if device == "cpu" else int(torch.cuda.memory_allocated())


def _bytes_of(modules: Iterable[Any]) -> int:
    """Of weights, each counted once."""
    known = {p.data_ptr(): p.numel() * p.element_size() for m in modules for p in m.parameters()}
    return sum(known.values())


def together(bench: Bench, backend: Backend) -> Iterable[Row]:
    """Two networks on half the SMs each at once, against one after the other on all SMs."""
    driver, count = backend.driver, bench.size(60, 2)
    bodies = [make(bench, backend.torch_device) for make in (layers.convolution, layers.attention)]
    with lanes(driver) as cut, ExitStack() as stack:
        half = len(cut.split.atoms) // 2 * 8
        sides, whole = (cut.first(half), cut.beside(half)), cut.plain()
        apart = [
            (stack.enter_context(captured(backend, lane.stream, body)), lane)
            for lane, body in zip(sides, bodies, strict=True)
        ]
        turns = [(stack.enter_context(captured(backend, whole.stream, b)), whole) for b in bodies]
        rates = [_pairs_per_s(backend, pair, count) for pair in (apart, turns)]
    gain = ratio(rates[0], rates[1])
    yield judged(
        "Multi-Model: two models side by side, over in turn", "more than in turn", f"{gain:.2f}",
        gain > 1.0, on_rps=rates[0], off_rps=rates[1],
    )  # fmt: skip


def _pairs_per_s(backend: Backend, pair: Iterable[tuple[int, Any]], count: int) -> float:
    began_s = time.perf_counter()
    for _ in range(count):
        for graph, lane in pair:
            backend.driver.launch_graph(graph, lane.stream)
    for _, lane in pair:
        backend.driver.synchronize(lane.stream)
    return count / (time.perf_counter() - began_s)


async def _pool(bench: Bench) -> AsyncIterator[Row]:
    why = lacking(bench, "green")
    if why:
        yield skipped("input pool", why)
        return
    try:
        async with stand(bench, maker(bench, "green"), ("resnet50",)) as opened:
            yield await pool(opened, bench.size(100, 3))
    except Exception as error:
        yield failed("input pool", error)


async def pool(opened: Stand, count: int) -> Row:
    """A full batch whose rows were copied when they came, against rows gathered when it begins."""
    gpu = opened.device.gpu
    one = next(iter(opened.opened.values()))
    await opened.rig.do(Carve(gpu.id, "pool", half_pct(gpu)), _LIMIT_S)
    await opened.rig.do(Load(gpu.id, "pool", one.model.key), _LIMIT_S)
    took: dict[bool, list[float]] = {True: [], False: []}
    for number in range(2 * count + 4):
        staged = number % 2 == 0
        taken_ms = await _batch(opened, one, staged)
        if number >= 4:
            took[staged].append(taken_ms)
    await opened.rig.do(Release(gpu.id, "pool"), _LIMIT_S)
    on, off = middle(took[True]), middle(took[False])
    return judged(
        "input pool: a full batch staged on arrival, over gathered at its start", "less time",
        f"{on:.3f} over {off:.3f} ms", on < off, on_ms=on, off_ms=off,
    )  # fmt: skip


async def _batch(opened: Stand, one: Opened, staged: bool) -> float:
    """Time of a full batch from when all its rows are there."""
    rows_ = one.model.signature.max_batch
    ids = [opened.rig.next_id() for _ in range(rows_)]
    members = tuple(one.request(number, 0.0, _NEVER_MS) for number in ids)
    if staged:
        await _staged(opened, members)
    batch = Batch(opened.rig.next_id(), one.model.key, members, rows_, slot=0 if staged else None)
    return (await opened.rig.run("pool", batch, _LIMIT_S)).took_ms


async def _staged(opened: Stand, members: tuple[Request, ...]) -> None:
    for slot, request in enumerate(members):
        work = Stage(opened.device.gpu.id, request, slot, len(members))
        await opened.rig.do(work, _LIMIT_S)
