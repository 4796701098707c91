"""Whether graphs wait for weights on this GPU: tried once, when a process starts."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final

from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.memory.mapped import MappedMemory, MappedWords
from interlace.device.cuda.models.precision import first_line, is_sticky

#: Far longer than the launch of a graph.
_LATE_NS: Final = 2_000_000
_ONE: Final = (1, 1, 1)


def wait_refusal(backend: CudaBackend, mapped: MappedMemory) -> str:
    """Why a graph does not wait for an event that another stream records late; empty if it does.

    Raises:
        CudaError: the GPU failed.
    """
    driver, spin = backend.driver, backend.kernels.spin
    with ExitStack() as steps:
        own, other = driver.stream(), driver.stream()
        steps.callback(driver.destroy_stream, own)
        steps.callback(driver.destroy_stream, other)
        event = driver.event()
        steps.callback(driver.destroy_event, event)
        words = MappedWords(mapped, 2)
        steps.callback(words.close)

        def body() -> None:
            driver.wait(own, event, external=True)
            driver.launch(spin, _ONE, _ONE, own, (0, words.address(0)))

        steps.callback(driver.synchronize, other)
        driver.record(event, other)  # what was never recorded says nothing in a graph
        try:
            graph = backend.capturer.capture(own, None, body)
        except Exception as error:
            if is_sticky(error):
                raise
            return first_line(error)
        steps.callback(graph.close)
        driver.launch(spin, _ONE, _ONE, other, (_LATE_NS, words.address(1)))
        driver.record(event, other)
        driver.launch_graph(graph.executable, own)
        driver.synchronize(own)
        return "" if driver.ended(event) else "a graph ran before what it waits for"
