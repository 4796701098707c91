"""Kernels that only read, run beside a model: both slow down by its use of L2 and DRAM."""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple

from interlace.core.profile import MemoryContention
from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.lanes import Lane

_THREADS: Final = 512
_BLOCKS_PER_SM: Final = 4
_MS: Final = 1_000_000
_WORD_BYTES: Final = 8
#: Bytes that are read over and over: far less than an L2 holds, and several times as much.
SIZES: Final = {"l2": 16 << 20, "dram": 512 << 20}


class ReaderLane(NamedTuple):
    """A reader's lane, and which part of the GPU it is."""

    lane: Lane
    share_pct: int


class Reading(NamedTuple):
    """What a time with a reader showed."""

    bytes_per_ms: float
    #: Median of the launches that ran wholly beside the reader; 0 if there were none.
    model_ms: float


class ReaderKernel(NamedTuple):
    """One kind of reader with its memory."""

    what: str
    source: int
    nbytes: int
    kernel: int


class ReaderKernels:
    """The memory that readers read, and what they moved."""

    def __init__(self, backend: CudaBackend, sizes: dict[str, int] | None = None) -> None:
        self._backend = backend
        kernels = {"l2": backend.kernels.l2_stream, "dram": backend.kernels.dram_stream}
        driver = backend.driver
        with ExitStack() as undo:
            self.kinds: list[ReaderKernel] = []
            for what, nbytes in (sizes or SIZES).items():
                source = driver.allocate(nbytes)
                undo.callback(driver.free, source)
                self.kinds.append(ReaderKernel(what, source, nbytes, kernels[what]))
            # What is moved is counted in device memory and fetched at the end: a count in host
            # memory would press on PCIe, beside what is measured.
            self._counter = driver.allocate(_WORD_BYTES)
            undo.callback(driver.free, self._counter)
            self._word = driver.allocate_mapped(_WORD_BYTES)
            undo.callback(driver.free_mapped, self._word)
            self._moved = ctypes.c_uint64.from_address(self._word.host)
            self._made = undo.pop_all()

    def close(self) -> None:
        self._made.close()

    def alone(self, reader: ReaderKernel, lane: Lane, milliseconds: int) -> float:
        """Bytes a ms that the reader reaches on the lane with nothing beside it."""
        return self._read(reader, lane, milliseconds, lambda running: 0.0).bytes_per_ms

    def peaks(self, whole: Lane, milliseconds: int = 100) -> dict[str, float]:
        """Bytes a ms of each kind alone on a lane of all SMs: what the GPU can do."""
        return {one.what: self.alone(one, whole, milliseconds) for one in self.kinds}

    def beside(
        self, reader: ReaderKernel, lane: Lane, milliseconds: int, model: Callable[[], float]
    ) -> Reading:
        """The reader on its lane while ``model``, which returns ms, is executed over and over."""

        def run(running: Callable[[], bool]) -> float:
            taken: list[float] = []
            while running():
                took_ms = model()
                if running():  # the reader outlasted it
                    taken.append(took_ms)
            return statistics.median(taken) if taken else 0.0

        return self._read(reader, lane, milliseconds, run)

    def _read(
        self,
        reader: ReaderKernel,
        lane: Lane,
        milliseconds: int,
        meanwhile: Callable[[Callable[[], bool]], float],
    ) -> Reading:
        driver, stream = self._backend.driver, lane.stream
        blocks = (max(1, lane.sms) * _BLOCKS_PER_SM, 1, 1)
        begin, end = driver.event(timing=True), driver.event(timing=True)
        try:
            self._moved.value = 0
            driver.copy(self._counter, self._word.device, _WORD_BYTES, stream)
            driver.record(begin, stream)
            driver.launch(
                reader.kernel,
                blocks,
                (_THREADS, 1, 1),
                stream,
                (reader.source, reader.nbytes, milliseconds * _MS, self._counter),
            )
            driver.record(end, stream)
            driver.copy(self._word.device, self._counter, _WORD_BYTES, stream)
            model_ms = meanwhile(lambda: not driver.ended(end))
            driver.synchronize(stream)
            took_ms = driver.elapsed_ms(begin, end)
        finally:
            driver.destroy_event(begin)
            driver.destroy_event(end)
        return Reading(self._moved.value / took_ms if took_ms > 0 else 0.0, model_ms)


def strains(
    readers: ReaderKernels,
    peaks: Mapping[str, float],
    beside: ReaderLane,
    model: Callable[[], float],
    milliseconds: int = 100,
) -> tuple[MemoryContention, ...]:
    """The model beside each kind of reader, whose lane shares no SMs with the model's.

    ``model`` runs one execution and returns its ms; ``peaks`` are the rates of readers alone on
    all SMs. A model too slow to end once beside a reader says nothing.
    """
    found: list[MemoryContention] = []
    for reader in readers.kinds:
        alone_ms = statistics.median(model() for _ in range(5))
        alone = readers.alone(reader, beside.lane, milliseconds)
        seen = readers.beside(reader, beside.lane, milliseconds, model)
        if seen.model_ms > 0 and alone_ms > 0:
            peak = peaks[reader.what]
            found.append(strain(reader.what, beside.share_pct, peak, alone, alone_ms, seen))
    return tuple(found)


def strain(
    what: str, share_pct: int, peak: float, alone: float, alone_ms: float, seen: Reading
) -> MemoryContention:
    """Rates (bytes a ms) and times as parts: of the GPU's peak, and of the time alone."""
    most = max(peak, alone, seen.bytes_per_ms)
    if most <= 0:
        return MemoryContention(what, share_pct, 0.0, 0.0, 1.0)
    taken = max(0.0, alone - seen.bytes_per_ms) / most
    return MemoryContention(
        what, share_pct, seen.bytes_per_ms / most, taken, seen.model_ms / alone_ms
    )


def pressure(seen: Sequence[MemoryContention]) -> tuple[float, float] | None:
    """L2 and DRAM that the model uses, 0..1: the most that it took from a reader.

    A reader that could saturate the GPU loses what the model uses; a small one loses less, so the
    largest loss is the nearest. ``None`` if one of the two was not measured.
    """
    both = {what: [one.taken for one in seen if one.what == what] for what in ("l2", "dram")}
    if not all(both.values()):
        return None
    l2, dram = (max(values) for values in both.values())
    return l2, dram
