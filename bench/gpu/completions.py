"""The ways to learn that a batch has ended: those of the server, and a callback of the driver."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Literal, get_args

from interlace.device.cuda.completion import kinds
from interlace.device.cuda.completion.base import Completions
from interlace.device.cuda.completion.flag_poller import c_library
from interlace.device.cuda.completion.flags import InFlightSequences, LaneFlags, poll_for
from interlace.device.cuda.driver.api import Driver, MappedBlock
from interlace.device.cuda.driver.errors import CudaError

Kind = Literal["flags", "blocking", "callback"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_LANE_BYTES: Final = 16  #: file descriptor, count
#: A host function of CUDA; ``words`` is the address of [file descriptor, count].
_SOURCE: Final = """
#include <stdint.h>
#include <sys/eventfd.h>
void count_and_tell(uint64_t *words)
{
    __atomic_store_n(words + 1, __atomic_load_n(words + 1, __ATOMIC_ACQUIRE) + 1, __ATOMIC_RELEASE);
    eventfd_write((int)words[0], 1);
}
"""


def completions(kind: Kind, driver: Driver, lanes: int) -> Completions:
    """Completion of ``lanes`` lanes, numbered from 0.

    Raises:
        CudaError: the driver refused.
        OSError: nothing compiles the loop of ``flags``.
        OSError: no C compiler for the function of ``callback``.
    """
    if kind == "callback":
        return HostFunction(driver, lanes)
    return kinds.completions(kind, driver, lanes)


class HostFunction:
    """``Completions`` by ``cuLaunchHostFunc``. The function is compiled and never takes the GIL;
    the stream waits until it has returned.

    Raises:
        CudaError: no page-locked memory is left.
        OSError: there is no C compiler to compile the function with.
    """

    def __init__(self, driver: Driver, lanes: int) -> None:
        self._driver = driver
        self._library = c_library("host_function", _SOURCE)  # kept: it holds the code
        function = ctypes.cast(self._library.count_and_tell, ctypes.c_void_p).value
        assert function is not None
        self._function = function
        self._host_call = _host_call(driver)
        self._flags = LaneFlags(driver, lanes)
        self._awaited = InFlightSequences()
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._words = (ctypes.c_uint64 * (2 * lanes))(*([self._fd, 0] * lanes))
        self._told = [0] * lanes

    def flag(self, lane_index: int) -> MappedBlock:
        return self._flags.mapped(lane_index)

    def submitted(self, lane_index: int, sequence: int, stream: int) -> None:
        words = ctypes.addressof(self._words) + lane_index * _LANE_BYTES
        self._host_call(stream, self._function, words)
        self._awaited.add(lane_index, sequence, stream)

    def fileno(self) -> int:
        return self._fd

    def look(self, for_s: float) -> bool:
        words, told, lanes = self._words, self._told, self._awaited.lanes
        return poll_for(lambda: any(words[2 * lane + 1] != told[lane] for lane in lanes), for_s)

    def drain(self) -> list[tuple[int, int]]:
        with suppress(BlockingIOError):
            os.eventfd_read(self._fd)
        ended: list[tuple[int, int]] = []
        for lane in self._awaited.lanes:
            count = self._words[2 * lane + 1]
            ended += self._awaited.first(lane, count - self._told[lane])
            self._told[lane] = count
        return ended

    @property
    def busy(self) -> bool:
        return bool(self._awaited.lanes)

    def check(self) -> None:
        self._awaited.check(self._driver)

    def close(self) -> None:
        os.close(self._fd)
        self._flags.close()


def _host_call(driver: Driver) -> Callable[[int, int, int], None]:
    """``cuLaunchHostFunc`` of a C function, past the bindings: theirs takes the GIL each time."""
    fake: Any = getattr(driver, "host_call", None)
    if fake is not None:
        return fake  # type: ignore[no-any-return]
    launch = ctypes.CDLL("libcuda.so.1").cuLaunchHostFunc
    launch.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    launch.restype = ctypes.c_int

    def call(stream: int, function: int, argument: int) -> None:
        status = launch(stream, function, argument)
        if status:
            raise CudaError("cuLaunchHostFunc", str(status))

    return call
