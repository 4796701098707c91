"""Memory for swapped weights: one slab on the GPU, windows, and copies on the host."""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Lock
from typing import Final

from interlace.device.cuda.driver.api import CopyGroup, CudaError, Driver, MappedBlock, Piece
from interlace.device.cuda.lanes import Lane
from interlace.device.cuda.memory.mapped import GRANULE_BYTES, MappedMemory
from interlace.shm.extents import Extents, rounded

#: The driver's own allocation touches with one thread: 16 GiB took 7.9 s, so 1.6 (cuDF #23457).
_THREADS: Final = 8
_PART_BYTES: Final = 256 << 20
#: Memory that stays free whatever is touched.
_SPARE_BYTES: Final = 512 << 20
#: A virtual machine's memory may grow while it is used: so long it may take to.
_GROWS_S, _LOOK_S = 10.0, 0.05
_MEMORY_FILE: Final = Path("/proc/meminfo")


def available_bytes() -> int | None:
    """Memory that can be touched without swapping; ``None`` where the kernel does not say."""
    try:
        lines = _MEMORY_FILE.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    kib = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return kib[0] * 1024 if kib else None


class TouchedPages:
    """Anonymous memory that the GPU reads in place and copies from; a ``PinnedSource``."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._maps: dict[MappedBlock, mmap.mmap] = {}

    def allocate_mapped(self, nbytes: int) -> MappedBlock:
        """
        Raises:
            OSError: so much memory is not there.
        """
        made = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # a kernel without them
            made.madvise(mmap.MADV_HUGEPAGE)
        host = ctypes.addressof(ctypes.c_char.from_buffer(made))
        try:
            self._touch(host, nbytes)
            mapped = self._driver.register(host, nbytes)
        except BaseException:
            made.close()
            raise
        self._maps[mapped] = made
        return mapped

    def _touch(self, host: int, nbytes: int) -> None:
        """A part at a time: what is touched before it is there is what the kernel ends us for."""

        def touch(begin: int, until: int) -> None:
            ctypes.memset(host + begin, 0, until - begin)

        with ThreadPoolExecutor(_THREADS) as threads:
            for begin in range(0, nbytes, _PART_BYTES):
                size = min(_PART_BYTES, nbytes - begin)
                self._wait_for(size, nbytes)
                ends = [begin + size * each // _THREADS for each in range(_THREADS + 1)]
                list(threads.map(touch, ends, ends[1:]))

    def _wait_for(self, size: int, nbytes: int) -> None:
        until_s = time.monotonic() + _GROWS_S
        while (left := available_bytes()) is not None and left < size + _SPARE_BYTES:
            if time.monotonic() >= until_s:
                raise OSError(
                    f"{nbytes >> 20} MiB of page-locked memory do not fit: {left >> 20} MiB are "
                    f"available, of which {_SPARE_BYTES >> 20} stay free"
                )
            time.sleep(_LOOK_S)

    def free_mapped(self, mapped: MappedBlock) -> None:
        """
        Raises:
            CudaError: the driver refused; the memory stays mapped, which is safe.
        """
        self._driver.unregister(mapped)
        self._maps.pop(mapped).close()


#: One half is filled over the peer's link while the other is passed on: long enough for the rate
#: of a large copy, short beside a load.
HALF_BYTES: Final = 16 << 20
_HALVES: Final = 2


class PeerPath:
    """Copies host -> peer, on a stream of the peer's, then peer -> here, on ``stream``.

    Parallel transmission (DeepPlan, section 4.3). One process has both GPUs: the one that it serves
    on, and of the peer a copy engine and some memory. So nothing is shared between processes, and
    the order is that of streams and events alone. A half of the buffer is filled again when it was
    passed on.
    """

    def __init__(self, driver: Driver, place: int) -> None:
        """
        Raises:
            CudaError: there is no such GPU, its memory cannot be read from here, or it has none.
        """
        self._driver = driver
        self._turn = 0
        with ExitStack() as undo:
            self._peer = peer = driver.peer(place)
            undo.callback(peer.close)
            self._buffer = peer.allocate(_HALVES * HALF_BYTES)
            undo.callback(peer.free, self._buffer)
            self.over = peer.stream()
            undo.callback(peer.destroy_stream, self.over)
            self.stream = driver.stream()
            undo.callback(driver.destroy_stream, self.stream)
            self._came = [peer.event() for _ in range(_HALVES)]
            self._passed = [driver.event() for _ in range(_HALVES)]
            undo.pop_all()

    def bring(self, groups: Sequence[CopyGroup]) -> None:
        """Enqueue copies of pieces of the host's memory, and record each group's event behind them.

        Raises:
            CudaError: a driver refused; the copies before are enqueued.
        """
        for group in groups:
            for target, source, nbytes in _cut(group.pieces):
                half = self._turn % _HALVES
                between = self._buffer + half * HALF_BYTES
                came, passed = self._came[half], self._passed[half]
                filled = CopyGroup(passed, [(between, source, nbytes)], came)
                self._peer.copy_groups([filled], self.over)
                self._turn += 1
                emptied = CopyGroup(came, [(target, between, nbytes)], passed)
                self._driver.copy_groups([emptied], self.stream)
            self._driver.record(group.ready, self.stream)

    def close(self) -> None:
        """Nothing is on its way. Every step is tried."""
        with ExitStack() as steps:
            steps.callback(self._peer.close)
            steps.callback(self._peer.free, self._buffer)
            for came, passed in zip(self._came, self._passed, strict=True):
                steps.callback(self._peer.destroy_event, came)
                steps.callback(self._driver.destroy_event, passed)
            steps.callback(self._peer.destroy_stream, self.over)
            steps.callback(self._driver.destroy_stream, self.stream)
            steps.callback(self._peer.synchronize, self.over)
            steps.callback(self._driver.synchronize, self.stream)


def _cut(pieces: Sequence[Piece]) -> Iterator[Piece]:
    for target, source, nbytes in pieces:
        for begin in range(0, nbytes, HALF_BYTES):
            yield target + begin, source + begin, min(HALF_BYTES, nbytes - begin)


#: Beyond the budget, for what rounding takes of each layer.
_SPARE_PART: Final = 64


class Window:
    """Where a lane's models have their weights while they run: graphs know these addresses alone.

    What a batch needs is copied here from the slab, within the GPU, or over the link, on a stream
    of the window's own. ``holder`` is whose weights are here or on their way, ``filled`` which of
    its layers; ``done`` the event behind the last batch that was launched on it.
    """

    def __init__(self, driver: Driver, nbytes: int) -> None:
        self.nbytes = nbytes
        self.holder: object = None
        self.filled: set[int] = set()
        self.users = 0
        self._driver = driver
        with ExitStack() as undo:
            self.address = driver.allocate(nbytes)
            undo.callback(driver.free, self.address)
            self.stream = driver.stream()
            undo.callback(driver.destroy_stream, self.stream)
            self.done = driver.event()
            undo.pop_all()

    def close(self) -> None:
        """Nothing runs on it."""
        with ExitStack() as steps:
            steps.callback(self._driver.free, self.address)
            steps.callback(self._driver.destroy_stream, self.stream)
            steps.callback(self._driver.destroy_event, self.done)
            steps.callback(self._driver.synchronize, self.stream)


class WeightsMemory:
    """Memory that all models of a process share whose weights are swapped by layer.

    A swap allocates nothing on the GPU: places are cut from a slab of ``budget_bytes`` that is
    allocated at the start. ``host`` has a copy of every model's weights, in pieces of at least
    ``host_bytes``. ``link`` is the stream of copies, in order: concurrent copies halve each other's
    rate. ``paths`` lead over the links of other GPUs. Any thread may take and give back.
    """

    def __init__(
        self,
        driver: Driver,
        budget_bytes: int,
        host_bytes: int,
        peers: int = 0,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        """``note`` hears of those of so many ``peers`` that cannot be used.

        Raises:
            CudaError: the GPU has not so much memory, or the host's cannot be page-locked.
            OSError: the host has not so much.
        """
        self.driver = driver
        self.budget_bytes = budget_bytes
        self._lock = Lock()
        self._windows: dict[Lane, list[Window]] = {}
        nbytes = budget_bytes + budget_bytes // _SPARE_PART
        with ExitStack() as undo:
            self._slab = driver.allocate(nbytes)
            undo.callback(driver.free, self._slab)
            self._ranges = Extents(nbytes, GRANULE_BYTES)
            self.paths = self._found(peers, note, undo)  # before the host's memory is page-locked
            self.host = MappedMemory(TouchedPages(driver), host_bytes)
            undo.callback(self.host.close)
            self.host.give_back(self.host.take(host_bytes))
            self.link = driver.stream()
            undo.callback(driver.destroy_stream, self.link)
            self._arrived = driver.stream()
            undo.callback(driver.destroy_stream, self._arrived)
            self._sent = [driver.event() for _ in self.incoming]
            undo.pop_all()

    @property
    def used_bytes(self) -> int:
        """Of the slab."""
        return self._ranges.size_bytes - self._ranges.free_bytes

    @property
    def incoming(self) -> tuple[int, ...]:
        """The streams that copies come on: of the own link, then of each path."""
        return (self.link, *(one.stream for one in self.paths))

    def arrived(self) -> int:
        """Return a stream without copies: work behind it starts once all copies so far have ended.

        Earlier copies end earlier, so two ends are reported in order.
        """
        self._after_all((self._arrived,))
        return self._arrived

    def line_up(self) -> None:
        """Order later copies, over any link, behind all earlier ones."""
        if self.paths:
            self._after_all(self.incoming)

    def take(self, sizes: Sequence[int]) -> list[int | None]:
        """A place for each size, side by side if there is room for that; ``None`` where is none."""
        whole_sizes = [rounded(size, GRANULE_BYTES) for size in sizes]
        with self._lock:
            whole = self._ranges.take(sum(whole_sizes)) if sizes else None
            if whole is not None:
                return [self._slab + begin for begin in self._ranges.split(whole, whole_sizes)]
            found = [self._ranges.take(size) for size in whole_sizes]
        return [None if begin is None else self._slab + begin for begin in found]

    def give_back(self, address: int) -> None:
        """What is copied over the link from now on may take its place."""
        with self._lock:
            self._ranges.give_back(address - self._slab)

    def window(self, lane: Lane, nbytes: int) -> Window:
        """A window of the lane for so much, the same for all models that fit."""
        there = self._windows.setdefault(lane, [])
        found = next((one for one in there if one.nbytes >= nbytes), None)
        if found is None:
            found = Window(self.driver, max(1, nbytes))
            there.append(found)
        found.users += 1
        return found

    def leave(self, lane: Lane, window: Window) -> None:
        """A model uses it no more; the last one takes it along."""
        window.users -= 1
        if not window.users:
            self._windows[lane].remove(window)
            window.close()

    def close(self) -> None:
        """Nothing is on its way or runs. Every step is tried."""
        with ExitStack() as steps:
            steps.callback(self.driver.free, self._slab)
            steps.callback(self.host.close)
            for path in self.paths:
                steps.callback(path.close)
            for event in self._sent:
                steps.callback(self.driver.destroy_event, event)
            for stream in (self.link, self._arrived):
                steps.callback(self.driver.destroy_stream, stream)
                steps.callback(self.driver.synchronize, stream)

    def _after_all(self, streams: Sequence[int]) -> None:
        for event, stream in zip(self._sent, self.incoming, strict=True):
            self.driver.record(event, stream)
        for stream in streams:
            for event in self._sent:
                self.driver.wait(stream, event)

    def _found(
        self, peers: int, note: Callable[[str], None], undo: ExitStack
    ) -> tuple[PeerPath, ...]:
        paths: list[PeerPath] = []
        for place in range(1, peers + 1):
            try:
                paths.append(PeerPath(self.driver, place))
            except CudaError as error:
                if error.sticky:
                    raise
                note(f"weights come over the GPU's own link, not over that of another ({error})")
                break
            undo.callback(paths[-1].close)
        return tuple(paths)
