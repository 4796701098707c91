"""GPU-DMA: scattered inputs gathered by a kernel inside the graph, or copied by the copy engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

from bench.gpu.bench import Bench
from bench.gpu.lanes import allocated, captured, lanes, mapped, words
from bench.gpu.mechanisms.nets import Net, network
from bench.gpu.mechanisms.published import DMA_CPU, DMA_ROWS
from bench.gpu.mechanisms.sides import Side, side, taken, versus
from bench.gpu.rows import Row
from interlace.device.cuda.backend.base import CudaBackend

_NETS: Final = ("alexnet", "resnet50", "vgg19")
#: Of a model that is being loaded: so many pieces of this size are on their way at a time.
_PIECES, _PIECE_BYTES = 4, 32 << 20


def rows(bench: Bench, backend: CudaBackend) -> Iterator[Row]:
    """Both ways for each network, with nothing beside it and with a model's load in flight."""
    for name in _NETS:
        net = network(bench, backend.torch_device, name, DMA_ROWS)
        for busy in (False, True):
            on, off, alone_ms = _sides(bench, backend, net, busy)
            beside = ", a model's load in flight" if busy else ""
            what = f"GPU-DMA: {name}, gathered over copied{beside}"
            yield versus(what, on, off, "p50_ms")
            if not busy:
                ours, theirs = ({"cpu_ms": max(0.0, s["cpu_ms"] - alone_ms)} for s in (on, off))
                yield versus(f"{what}: CPU of the transfer", ours, theirs, "cpu_ms", DMA_CPU)


def _sides(bench: Bench, backend: CudaBackend, net: Net, busy: bool) -> tuple[Side, Side, float]:
    """With a gather, with copies, and the CPU time to launch the graph alone."""
    driver, size = backend.driver, net.row_bytes
    with ExitStack() as stack:
        lane = stack.enter_context(lanes(driver)).plain()
        host = stack.enter_context(mapped(driver, 2 * DMA_ROWS * size))
        table = stack.enter_context(mapped(driver, 8 * (DMA_ROWS + 1)))
        entries = words(table, DMA_ROWS + 1)
        entries[0] = DMA_ROWS
        places = [host.device + 2 * index * size for index in range(DMA_ROWS)]
        target, body = net.values.data_ptr(), net.body()
        arguments = (table.device + 8, table.device, target, size, DMA_ROWS)
        fetch = partial(
            driver.launch, backend.kernels.gather_rows, (16, 1, 1), (512, 1, 1), lane.stream,
            arguments,
        )  # fmt: skip
        _write(entries, places)  # before the warm-up reads it
        both = stack.enter_context(captured(backend, lane, lambda: (fetch(), body())))
        alone = stack.enter_context(captured(backend, lane, body))
        load = stack.enter_context(_load(bench, backend)) if busy else _nothing

        def gathered() -> None:
            load()
            _write(entries, places)
            driver.launch_graph(both, lane.stream)

        def copied() -> None:
            load()
            for index, place in enumerate(places):
                driver.copy(target + index * size, place, size, lane.stream)
            driver.launch_graph(alone, lane.stream)

        count, streams = bench.size(120, 3), (lane.stream,)
        ways = [taken(driver, streams, way, count) for way in (gathered, copied)]
        launch = partial(driver.launch_graph, alone, lane.stream)
        _, alone_ms = taken(driver, streams, launch, count)
        on, off = (side(ms, DMA_ROWS, cpu_ms=cpu_ms) for ms, cpu_ms in ways)
        return on, off, alone_ms


def _write(entries: object, places: list[int]) -> None:
    for index, place in enumerate(places):
        entries[1 + index] = place  # type: ignore[index]


def _nothing() -> None:
    return


@contextmanager
def _load(bench: Bench, backend: CudaBackend) -> Iterator[Callable[[], None]]:
    """A function that keeps the copy engine as busy as loading a model does."""
    driver, size = backend.driver, bench.size(_PIECE_BYTES, 1 << 12)
    with mapped(driver, size) as host, allocated(driver, size) as device:
        stream, ended = driver.stream(), driver.event()

        def again() -> None:
            if driver.ended(ended):
                for _ in range(_PIECES):
                    driver.copy(device, host.device, size, stream)
                driver.record(ended, stream)

        try:
            driver.record(ended, stream)
            yield again
        finally:
            driver.synchronize(stream)
            driver.destroy_event(ended)
            driver.destroy_stream(stream)
