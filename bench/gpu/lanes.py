"""Streams on SMs of one's choice, for checks; and how long things on them take."""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from interlace.core.profile import quantile as nearest_rank
from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.driver.api import Atom, Driver, GreenContext, MappedBlock, SmSplit
from interlace.device.cuda.graphs.capture import CapturedGraph
from interlace.device.cuda.lanes import between_events

_ATOM_SMS = 8


class Lane(NamedTuple):
    """A stream, and the SMs of its green context; all of the GPU's if it has none."""

    stream: int
    sms: int
    green: GreenContext | None


class Lanes:
    """Cuts a GPU once and makes streams on parts of it; ``close`` gives all of it back."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._made: list[Lane] = []
        self.split: SmSplit = driver.split(_ATOM_SMS)

    def plain(self) -> Lane:
        """A stream on all SMs."""
        lane = Lane(self._driver.stream(None), self._driver.board.sms, None)
        self._made.append(lane)
        return lane

    def on(self, atoms: Sequence[Atom]) -> Lane:
        """A stream on these SMs."""
        green = self._driver.green(atoms)
        lane = Lane(self._driver.stream(green), green.sms, green)
        self._made.append(lane)
        return lane

    def first(self, sms: int) -> Lane:
        """A stream on the first atoms that make up ``sms``; never on all."""
        count = max(1, min(sms // _ATOM_SMS, len(self.split.atoms) - 1))
        return self.on(self.split.atoms[:count])

    def close(self) -> None:
        """Streams first, then their contexts."""
        for lane in reversed(self._made):
            self._driver.destroy_stream(lane.stream)
            if lane.green is not None:
                self._driver.destroy_green(lane.green)
        self._made.clear()


@contextmanager
def lanes(driver: Driver) -> Iterator[Lanes]:
    """``Lanes``, closed afterwards."""
    made = Lanes(driver)
    try:
        yield made
    finally:
        made.close()


def warm(backend: CudaBackend, lane: Lane, body: Callable[[], object], times: int = 2) -> None:
    """Run a body a few times outside of any capture: libraries choose and load what they need."""
    finish_setup(backend)

    def run() -> None:
        with backend.torch_stream(lane.stream):
            for _ in range(times):
                body()

    backend.threads.run(lane.green, run)
    backend.driver.synchronize(lane.stream)


def finish_setup(backend: CudaBackend) -> None:
    """Wait for what torch has done on its own stream: a lane does not wait for it by itself."""
    import torch

    if torch.device(backend.torch_device).type == "cuda":
        torch.cuda.synchronize()


def capture(backend: CudaBackend, lane: Lane, body: Callable[[], object]) -> CapturedGraph:
    """A body captured on a lane, to be closed by the caller."""

    def only() -> None:
        body()

    return backend.threads.run(
        lane.green, lambda: backend.capturer.capture(lane.stream, None, only)
    )


@contextmanager
def captured(backend: CudaBackend, lane: Lane, body: Callable[[], object]) -> Iterator[int]:
    """A body warmed up and captured on a lane; the graph's handle, closed afterwards."""
    warm(backend, lane, body)
    graph = capture(backend, lane, body)
    try:
        yield graph.executable
    finally:
        backend.driver.synchronize(lane.stream)
        graph.close()


def times_ms(
    driver: Driver, stream: int, launch: Callable[[], object], count: int, warm_ups: int = 2
) -> list[float]:
    """GPU time of each of ``count`` launches, one at a time, by events on the stream."""
    with between_events(driver, stream) as taken_ms:
        for _ in range(warm_ups):
            taken_ms(launch)
        return [taken_ms(launch) for _ in range(count)]


def quantile(values: Sequence[float], part: float) -> float:
    """The nearest-rank quantile of values in any order."""
    return nearest_rank(sorted(values), part)


def middle(values: Sequence[float]) -> float:
    """The median."""
    return quantile(values, 0.5)


def ratio(one: float, other: float) -> float:
    """One over the other; NaN where the other is nothing, as on a clock that stands still."""
    return one / other if other > 0 else float("nan")


def rate_gbs(nbytes: float, ms: float) -> float:
    """Bytes in a time, in 10^9 per second."""
    return ratio(nbytes / 1e6, ms)


@contextmanager
def mapped(driver: Driver, nbytes: int) -> Iterator[MappedBlock]:
    """Page-locked memory for a while."""
    made = driver.allocate_mapped(nbytes)
    try:
        yield made
    finally:
        driver.free_mapped(made)


@contextmanager
def allocated(driver: Driver, nbytes: int) -> Iterator[int]:
    """Device memory for a while."""
    address = driver.allocate(nbytes)
    try:
        yield address
    finally:
        driver.free(address)


def words(memory: MappedBlock, count: int) -> ctypes.Array[ctypes.c_uint64]:
    """Mapped memory as 64-bit words."""
    return (ctypes.c_uint64 * count).from_address(memory.host)


def sms_of(backend: CudaBackend, launch: Callable[[int, int], object], stream: int) -> set[int]:
    """Which SMs ``launch(address, blocks)`` wrote, once the stream has ended."""
    driver = backend.driver
    blocks = 4 * driver.board.sms
    with mapped(driver, 8 * blocks) as memory:
        seen = words(memory, blocks)
        for index in range(blocks):
            seen[index] = _NOWHERE
        launch(memory.device, blocks)
        driver.synchronize(stream)
        return {sm for sm in seen if sm != _NOWHERE}


_NOWHERE = (1 << 64) - 1
_STAY_NS = 100_000
_THREADS = 1024


def ask_sms(backend: CudaBackend, stream: int, address: int, blocks: int) -> None:
    """Launch the kernel that writes where its blocks ran."""
    backend.driver.launch(
        backend.kernels.smid, (blocks, 1, 1), (_THREADS, 1, 1), stream, (address, _STAY_NS)
    )
