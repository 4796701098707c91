"""The loop without the GIL, compiled by numba where there is no C compiler (``c_loops``)."""

from __future__ import annotations

import ctypes
from typing import Any, Final

from numba import njit, types
from numba.extending import intrinsic

from interlace.device.cuda.completion.loops import PollLoop

#: libc by addresses as integers: compiled code knows no pointers.
_LIBC: Final = ctypes.CDLL(None)
_eventfd_write = _LIBC.eventfd_write
_eventfd_write.argtypes = [ctypes.c_int, ctypes.c_uint64]
_eventfd_write.restype = ctypes.c_int
_eventfd_read = _LIBC.eventfd_read
_eventfd_read.argtypes = [ctypes.c_int, ctypes.c_uint64]
_eventfd_read.restype = ctypes.c_int
_sched_yield = _LIBC.sched_yield
_sched_yield.argtypes = []
_sched_yield.restype = ctypes.c_int
_usleep = _LIBC.usleep
_usleep.argtypes = [ctypes.c_uint32]
_usleep.restype = ctypes.c_int

_WORD_BYTES: Final = 8


def _loading(_context: Any, address: Any) -> Any:
    """A 64-bit word in memory, read anew each time, with acquire order."""
    word = types.uint64

    def build(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], context.get_value_type(word).as_pointer())
        return builder.load_atomic(place, "acquire", _WORD_BYTES)

    return word(types.uint64), build


_load: Final[Any] = intrinsic(_loading)


def _storing(_context: Any, address: Any, value: Any) -> Any:
    """A 64-bit word to memory, with release order."""
    word = types.uint64

    def build(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], context.get_value_type(word).as_pointer())
        builder.store_atomic(arguments[1], place, "release", _WORD_BYTES)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64), build


_store: Final[Any] = intrinsic(_storing)


def _poll(
    flags: int,
    wanted: int,
    seen: int,
    lanes: int,
    line_bytes: int,
    tell_fd: int,
    wake_fd: int,
    scratch: int,
    rest_us: int,
) -> None:
    """``watch_flags``."""
    while _load(scratch + types.uint64(8)) == 0:
        changed, behind = False, False
        for lane in range(lanes):
            flag = _load(flags + lane * line_bytes)
            if flag != _load(seen + lane * types.uint64(8)):
                _store(seen + lane * types.uint64(8), flag)
                changed = True
            if flag < _load(wanted + lane * line_bytes):
                behind = True
        if changed:
            _eventfd_write(tell_fd, 1)
        if not behind:
            _eventfd_read(wake_fd, scratch)
        elif rest_us == 0:
            _sched_yield()
        else:
            _usleep(rest_us)


_POLL: Final = "void(uint64, uint64, uint64, uint64, uint64, int32, int32, uint64, uint32)"


def compile_poll() -> PollLoop:
    """Compile it, which takes a second or two.

    Raises:
        Exception: whatever numba raises.
    """
    return njit(_POLL, nogil=True)(_poll)  # type: ignore[no-any-return]
