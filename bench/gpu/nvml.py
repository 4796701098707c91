"""NVML of the measured GPU: its energy, and memory in use as seen from outside all processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bench.gpu.bench import Bench
from bench.gpu.devices import board
from interlace.measure.cuda.nvml import BoundNvml, Counters, Nvml


class Steady:
    """Stands for NVML where there is no GPU: so many watts all the time."""

    counts = True

    def __init__(self, watts: float = 100.0) -> None:
        self._watts = watts

    def energy_j(self) -> float:
        return self._watts * time.monotonic()

    def sample(self) -> Any:
        return time.monotonic()

    def between(self, first: Any, second: Any) -> Counters:
        return Counters(0.5, 0.5)

    def close(self) -> None:
        return


def open_nvml(bench: Bench) -> Nvml:
    """NVML's energy and counters.

    Raises:
        NvmlError: it is not installed, or does not answer.
    """
    return Steady() if bench.dry else BoundNvml(board(bench).uuid)


@contextmanager
def used_bytes(bench: Bench) -> Iterator[Callable[[], int]]:
    """Memory in use on the GPU by all processes together; nothing without a GPU."""
    if bench.dry:
        yield lambda: 0
        return
    import pynvml

    pynvml.nvmlInit()
    try:
        gpu = pynvml.nvmlDeviceGetHandleByUUID(board(bench).uuid)
        yield lambda: int(pynvml.nvmlDeviceGetMemoryInfo(gpu).used)
    finally:
        pynvml.nvmlShutdown()
