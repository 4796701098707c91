"""Completion by flags: a thread without the GIL watches the words that a GPU stores at the end."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final

from interlace.device.cuda.driver.api import Driver, MappedBlock
from interlace.device.cuda.driver.kernels import FOLDER, cached_bytes

WORD_BYTES: Final = 8
LINE_BYTES: Final = 64  #: a cache line each, so that lanes do not disturb one another


class LaneFlags:
    """``lanes`` flag words (u64), zero at first, each in a cache line of its own."""

    def __init__(self, driver: Driver, lanes: int) -> None:
        self._driver = driver
        self._block = driver.allocate_mapped(lanes * LINE_BYTES)
        ctypes.memset(self._block.host, 0, self._block.nbytes)
        count = lanes * LINE_BYTES // WORD_BYTES
        self._words = (ctypes.c_uint64 * count).from_address(self._block.host)

    def mapped(self, lane_index: int) -> MappedBlock:
        """The word of a lane, for the GPU to write.

        Raises:
            IndexError: there are fewer lanes.
        """
        offset = lane_index * LINE_BYTES
        if not 0 <= offset < self._block.nbytes:
            raise IndexError(f"lane {lane_index}: there are {self._block.nbytes // LINE_BYTES}")
        return MappedBlock(self._block.host + offset, self._block.device + offset, WORD_BYTES)

    def value(self, lane_index: int) -> int:
        """What the GPU last stored."""
        return self._words[lane_index * LINE_BYTES // WORD_BYTES]

    def close(self) -> None:
        """Nothing reads or writes them any more."""
        self._driver.free_mapped(self._block)


_COMPILER: Final = "cc"
_FLAGS: Final = ("-O2", "-shared", "-fPIC")
_COMPILE_S: Final = 30.0

#: Watches flags until a stop is requested; ``sources/loops.c`` describes the arguments.
PollLoop = Callable[..., None]


def poll_loop() -> PollLoop:
    """The loop that polls flags; ``ctypes`` calls it without the GIL.

    A wheel brings it compiled.

    Raises:
        OSError: as ``c_library``.
    """
    source = files(__package__) / "sources" / "loops.c"
    with as_file(source) as path:
        built = path.with_suffix(".so")
        library = (
            ctypes.CDLL(str(built))
            if built.exists()
            else c_library("loops", source.read_text(encoding="utf-8"))
        )
    poll = library.watch_flags
    u64 = ctypes.c_uint64
    poll.argtypes = [*[u64] * 5, ctypes.c_int, ctypes.c_int, u64, ctypes.c_uint32]
    poll.restype = None
    return poll


@cache
def c_library(stem: str, source: str) -> ctypes.CDLL:
    """C compiled and loaded once; the compiled library is kept on disk for the next process.

    Raises:
        OSError: there is no compiler, it refuses the source, or the library cannot be loaded.
    """
    made_of = "\0".join((source, platform.machine(), platform.libc_ver()[0], *_FLAGS))
    folder = Path(FOLDER).expanduser()
    return _loaded(cached_bytes(folder, stem, made_of, ".so", lambda: _compiled(source)))


def _compiled(source: str) -> bytes:
    compiler = shutil.which(_COMPILER)
    if compiler is None:
        raise OSError(f"there is no C compiler ({_COMPILER}) on the path: install gcc")
    with tempfile.TemporaryDirectory(prefix="interlace-") as folder:
        text, out = Path(folder, "loops.c"), Path(folder, "loops.so")
        text.write_text(source, encoding="utf-8")
        command = [compiler, *_FLAGS, "-o", str(out), str(text)]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_COMPILE_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise OSError(f"{compiler} did not end within {_COMPILE_S:g} s") from error
        if done.returncode != 0:
            said = (done.stderr.strip().splitlines() or ["without a word"])[0]
            raise OSError(f"{compiler} failed with code {done.returncode}: {said[:200]}")
        return out.read_bytes()


@cache
def _loaded(library: bytes) -> ctypes.CDLL:
    # From memory: the folder that it is kept in may forbid to run what lies there. The descriptor
    # of each library stays open: the loader knows libraries by their path, and another one that was
    # given the same number would be taken for this.
    fd = os.memfd_create("interlace-loops", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(fd), "wb") as out:
            out.write(library)
        return ctypes.CDLL(f"/proc/self/fd/{fd}")
    except OSError:
        os.close(fd)
        raise


_STOP: Final = 1  #: which word of ``scratch``


class FlagPoller:
    """Ends of batches of all lanes of a process, in one readable descriptor (Sync-lite).

    Every graph ends with the kernel ``signal``, which stores the batch's sequence number in the
    lane's flag: no call of CUDA is needed per batch. Sequence numbers of a lane grow by any
    positive step. ``submitted`` and ``drain`` belong to the thread that launches.

    A thread without the GIL sweeps the flags while something is in flight, and sleeps else. Between
    sweeps it yields its core if ``rest_us`` is 0, so that it takes a core of its own; or it rests
    that long, which costs latency instead.

    Raises:
        OSError: nothing compiles the thread's loop here.
    """

    def __init__(self, driver: Driver, lanes: int, rest_us: int = 0) -> None:
        self._driver = driver
        poll = poll_loop()
        self._flags = LaneFlags(driver, lanes)
        self._awaited: dict[int, deque[int]] = {}  #: in flight, by lane, in order
        self._streams: dict[int, int] = {}  #: those that they are in
        words = lanes * LINE_BYTES // WORD_BYTES
        self._wanted = (ctypes.c_uint64 * words)()
        self._seen = (ctypes.c_uint64 * lanes)()
        self._scratch = (ctypes.c_uint64 * 2)()
        self._tell_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(
            target=poll,
            name="completions",
            args=(
                self._flags.mapped(0).host,
                ctypes.addressof(self._wanted),
                ctypes.addressof(self._seen),
                lanes,
                LINE_BYTES,
                self._tell_fd,
                self._wake_fd,
                ctypes.addressof(self._scratch),
                rest_us,
            ),
            daemon=True,
        )
        self._thread.start()

    def flag(self, lane_index: int) -> MappedBlock:
        """The lane's flag word (u64), written by the GPU, zero at first."""
        return self._flags.mapped(lane_index)

    def submitted(self, lane_index: int, sequence: int, stream: int) -> None:
        """A batch was just launched on the lane's stream; call it right after the launch."""
        self._awaited.setdefault(lane_index, deque()).append(sequence)
        self._streams[lane_index] = stream
        self._wanted[lane_index * LINE_BYTES // WORD_BYTES] = sequence
        os.eventfd_write(self._wake_fd, 1)

    def fileno(self) -> int:
        """Readable when something may have ended."""
        return self._tell_fd

    def look(self, for_s: float) -> bool:
        """Whether ``drain`` has something; looks for that long, by reading memory alone.

        Before sleeping on the descriptor, which takes longer to wake up from.
        """
        awaited, flags = self._awaited, self._flags
        oldest = [(lane, numbers[0]) for lane, numbers in awaited.items()]
        until_s = time.perf_counter() + for_s
        while not (found := any(flags.value(lane) >= first for lane, first in oldest)):
            if time.perf_counter() >= until_s:
                break
        return found

    def drain(self) -> list[tuple[int, int]]:
        """(lane, sequence) of what ended since the last call, in order within a lane."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._tell_fd)
        ended: list[tuple[int, int]] = []
        for lane, waiting in list(self._awaited.items()):
            reached = self._flags.value(lane)
            while waiting and waiting[0] <= reached:
                ended.append((lane, waiting.popleft()))
            if not waiting:
                del self._awaited[lane], self._streams[lane]
        return ended

    @property
    def busy(self) -> bool:
        """Whether anything was submitted and not drained; any thread may ask."""
        return bool(self._awaited)

    def check(self) -> None:
        """Ask the GPU whether it still works; call it now and then, a flag tells no error.

        Each stream that holds work says so if not. An event of our own would not do: one that was
        never recorded has ended, which the driver says without a look at the GPU.

        Raises:
            CudaError: it failed; what was submitted and not drained will never end.
        """
        for stream in self._streams.values():
            self._driver.idle(stream)

    def close(self) -> None:
        """Stop; nothing is in flight any more, or the GPU failed.

        Raises:
            CudaError: it failed; threads and descriptors are given back all the same.
        """
        self._scratch[_STOP] = 1
        os.eventfd_write(self._wake_fd, 1)
        self._thread.join()
        os.close(self._wake_fd)
        os.close(self._tell_fd)
        self._flags.close()
