"""What a process tries on its GPU when it starts: libraries on green contexts, waits in graphs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

import torch

from interlace.device.cuda.backend.base import (
    ContextThreads,
    CudaBackend,
    LibraryChoice,
    LibraryThreads,
    threads_for,
)
from interlace.device.cuda.lanes import Lane, Lanes
from interlace.device.cuda.memory.mapped import MappedMemory, MappedWords
from interlace.device.cuda.models.precision import first_line, is_sticky

#: Far longer than the launch of a graph.
_LATE_NS: Final = 2_000_000
_ONE: Final = (1, 1, 1)


def wait_refusal(backend: CudaBackend, mapped: MappedMemory) -> str:
    """Why a graph does not wait for an event that another stream records late; empty if it does."""
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


_TRIAL: Final = "trial of libraries"


def library_threads(
    choice: LibraryChoice, backend: CudaBackend, lanes: Lanes, note: Callable[[str], None]
) -> LibraryThreads:
    """The threads on which torch works, as chosen; ``auto`` tries a convolution on a lane.

    Without green contexts there is one context and nothing to choose.

    Raises:
        CudaError: the GPU failed, or has no lane.
    """
    count, sms = lanes.blocks
    if choice != "auto" or not count:
        return threads_for("green" if choice == "green" else "primary", backend.driver)
    lane = lanes.carve(_TRIAL, 100 * sms // backend.driver.board.sms)
    try:
        plain, own = LibraryThreads(), ContextThreads(backend.driver)
        refusal = _refusal(backend, plain, lane)
        if refusal and not _refusal(backend, own, lane):
            note(
                f"partitions have library handles and threads of their own: with one handle for "
                f"all of them, a convolution fails ({refusal})"
            )
            return own
        own.close()
        if refusal:
            note(
                f"convolutions fail in partitions of this GPU ({refusal}): models that have some "
                f"are served with --device streams or mps"
            )
        return plain
    finally:
        lanes.release(_TRIAL)


def _refusal(backend: CudaBackend, threads: LibraryThreads, lane: Lane) -> str:
    """Why a convolution fails on the lane; empty if it does not."""

    def convolve() -> None:
        with backend.torch_stream(lane.stream), torch.inference_mode():
            backend.convolve()
        backend.driver.synchronize(lane.stream)

    try:
        threads.run(lane.green, convolve)
    except Exception as error:
        if is_sticky(error):
            raise
        return first_line(error)
    return ""
