"""What cold starts stand on: the rate of the link, and waits inside graphs."""

import ctypes
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Final

from bench.gpu.bench import Bench
from bench.gpu.lanes import allocated, mapped, middle, rate_gbs, times_ms
from bench.gpu.rows import Row, judged, law, seen, skipped
from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.driver.api import CopyGroup, CudaError
from interlace.device.cuda.memory.mapped import MappedMemory
from interlace.device.cuda.memory.weights_memory import PeerPath, TouchedPages

_MIB: Final = 1 << 20
_COPIES_MIB: Final = (1, 4, 8, 16, 64, 219)
#: As many groups as BERT-base has.
_WAITS: Final = 21
_MOST_US: Final = 2.0
#: Of two links, what their copies reach together: halves wait for each other a little.
_BOTH: Final = 1.7


def link(bench: Bench, backend: CudaBackend) -> Iterator[Row]:
    """Copies by size from page-locked huge pages."""
    driver = backend.driver
    sizes = [mib * _MIB for mib in bench.size(_COPIES_MIB, (1,))]
    with ExitStack() as steps:
        pages = MappedMemory(TouchedPages(driver), max(sizes))
        steps.callback(pages.close)
        host = pages.take(max(sizes)).device
        device = steps.enter_context(allocated(driver, max(sizes)))
        stream = driver.stream()
        steps.callback(driver.destroy_stream, stream)
        for size in sizes:
            copy = partial(driver.copy, device, host, size, stream)
            rate = rate_gbs(size, middle(times_ms(driver, stream, copy, bench.size(10, 1), 2)))
            yield seen(f"one copy of {size // _MIB} MiB", f"{rate:.1f} GB/s", alone_gbs=rate)


def second_gpu(bench: Bench, backend: CudaBackend) -> Iterator[Row]:
    """Copies forwarded by another GPU, alone and beside those over the own link."""
    driver, large = backend.driver, bench.size(219 * _MIB, 4096)
    with ExitStack() as steps:
        try:
            path = PeerPath(driver, 1)
        except CudaError as error:
            yield skipped("copies forwarded by a second GPU", str(error))
            return
        steps.callback(path.close)
        pages = MappedMemory(TouchedPages(driver), 2 * large)
        steps.callback(pages.close)
        host = pages.take(2 * large)
        device = steps.enter_context(allocated(driver, 2 * large))
        own, ready = driver.stream(), driver.event()
        steps.callback(driver.destroy_stream, own)
        steps.callback(driver.destroy_event, ready)
        view = (ctypes.c_uint8 * large).from_address(host.host)
        view[:: _MIB // 4] = [7] * len(view[:: _MIB // 4])
        sent, found = ctypes.string_at(host.host, large), pages.take(large)

        def took_ms(forwarded: bool, direct: bool) -> float:
            began_s = time.perf_counter()
            if forwarded:
                path.bring([CopyGroup(0, [(device, host.host, large)], ready)])
            if direct:
                driver.copy(device + large, host.host + large, large, own)
            driver.synchronize(path.stream)
            driver.synchronize(own)
            return (time.perf_counter() - began_s) * 1000.0

        took_ms(True, True)
        driver.copy(found.device, device, large, own)
        driver.synchronize(own)
        same = ctypes.string_at(found.host, large) == sent
        yield law(
            "what a second GPU forwards", "the same bytes",
            "the same bytes" if same else "others", same,
        )  # fmt: skip
        times = bench.size(20, 2)
        one, other, both = (
            middle([took_ms(*how) for _ in range(times)])
            for how in ((True, False), (False, True), (True, True))
        )
        rates = [rate_gbs(large, one), rate_gbs(large, other), rate_gbs(2 * large, both)]
        yield judged(
            "copies over both links at once", f"at least {_BOTH:g} of one",
            f"{rates[2]:.1f} GB/s; forwarded alone {rates[0]:.1f}, the own link {rates[1]:.1f}",
            rates[2] >= _BOTH * rates[1], forwarded_gbs=rates[0], own_gbs=rates[1],
            both_gbs=rates[2],
        )  # fmt: skip


def waits(bench: Bench, backend: CudaBackend) -> Iterator[Row]:
    """That a graph stands still where it waits, and what waits cost whose events are there."""
    driver = backend.driver
    with ExitStack() as steps:
        streams = [driver.stream() for _ in range(2)]
        for one in streams:
            steps.callback(driver.destroy_stream, one)
        own, link_ = streams
        events = [driver.event() for _ in range(_WAITS)]
        for one in events:
            steps.callback(driver.destroy_event, one)
        driver.copy_groups([CopyGroup(0, (), one) for one in events], link_)
        words = steps.enter_context(mapped(driver, 4096))
        large = bench.size(256 * _MIB, 4096)
        host = steps.enter_context(mapped(driver, large)).device
        device = steps.enter_context(allocated(driver, large))

        def stamp(at: int) -> None:
            driver.launch(
                backend.kernels.smid, (1, 1, 1), (1, 1, 1), own, (words.device + 8 * at, 0)
            )

        costs = []
        for count in (0, _WAITS):

            def body(count: int = count) -> None:
                for at in range(_WAITS):
                    if at < count:
                        driver.wait(own, events[at], external=True)
                    stamp(at)

            graph = backend.capturer.capture(own, None, body)
            steps.callback(graph.close)
            launch = partial(driver.launch_graph, graph.executable, own)
            costs.append(middle(times_ms(driver, own, launch, bench.size(50, 1), 2)))
        added_us = (costs[1] - costs[0]) * 1000.0 / _WAITS
        yield judged(
            "a wait in a graph whose event is there", f"at most {_MOST_US:g} us",
            f"{added_us:.2f} us", added_us <= _MOST_US, without_ms=costs[0], with_ms=costs[1],
        )  # fmt: skip
        last = driver.event()
        steps.callback(driver.destroy_event, last)
        driver.copy_groups([CopyGroup(0, [(device, host, large)], events[-1])], link_)
        launch()  # the graph with waits
        driver.record(last, own)
        early = driver.ended(last) and not driver.ended(events[-1])
        driver.synchronize(own)
        yield law(
            "a graph waits for what was recorded before its launch", "not earlier",
            "earlier" if early or not driver.ended(events[-1]) else "not earlier",
            not early and driver.ended(events[-1]),
        )  # fmt: skip
        driver.copy_groups([CopyGroup(0, [(device, host, large)], events[-1])], link_)
        launch()
        driver.copy_groups([CopyGroup(0, [(device, host, large)], events[-1])], link_)
        driver.synchronize(own)
        held = driver.ended(events[-1])
        driver.synchronize(link_)
        yield seen(
            "a record after a graph's launch", "holds it up" if held else "does not hold it up",
            held=held,
        )  # fmt: skip
