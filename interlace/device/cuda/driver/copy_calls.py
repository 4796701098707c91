"""Groups of copies enqueued by one compiled call, or call by call where nothing compiles it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Final

from cuda.bindings import driver as cu

from interlace.device.cuda.completion.flag_poller import c_library
from interlace.device.cuda.driver.api import CopyGroup
from interlace.device.cuda.driver.calls import PrimaryContext
from interlace.device.cuda.driver.errors import CudaError

_COPY, _RECORD, _WAIT = range(3)
_NAMES: Final = ("cuMemcpyAsync", "cuEventRecord", "cuStreamWaitEvent")
_WORDS: Final = 4

#: Steps of four words, how many there are, the stream: the step that failed and its status, or 0.
_Compiled = Callable[[object, int, int], int]


def enqueue(context: PrimaryContext, groups: Sequence[CopyGroup], stream: int) -> None:
    """
    Raises:
        CudaError: the driver refused a step; those before it are enqueued.
    """
    compiled = _compiled()
    steps = list(_steps(groups))
    if compiled is None:
        for what, one, other, nbytes in steps:
            if what == _COPY:
                context.call(cu.cuMemcpyAsync, one, other, nbytes, stream)
            elif what == _RECORD:
                context.call(cu.cuEventRecord, one, stream)
            else:
                context.call(cu.cuStreamWaitEvent, stream, one, 0)
        return
    context.enter_once()
    words = (ctypes.c_uint64 * (_WORDS * len(steps)))(*(word for step in steps for word in step))
    failed = compiled(words, len(steps), stream)
    if failed:
        step, status = steps[(failed >> 32) - 1], cu.CUresult(failed & 0xFFFFFFFF)
        raise CudaError(_NAMES[step[0]], status.name)


def _steps(groups: Sequence[CopyGroup]) -> Iterator[tuple[int, int, int, int]]:
    for group in groups:
        if group.after:
            yield _WAIT, group.after, 0, 0
        for piece in group.pieces:
            yield _COPY, *piece
        if group.ready:
            yield _RECORD, group.ready, 0, 0


@cache
def _compiled() -> _Compiled | None:
    try:
        source = (files(__package__) / "sources" / "copies.c").read_text(encoding="utf-8")
        call = c_library("copies", source).copy_groups
        driver = ctypes.CDLL("libcuda.so.1")
        there = [ctypes.cast(getattr(driver, name), ctypes.c_void_p) for name in _NAMES]
    except (OSError, AttributeError):
        return None
    u64 = ctypes.c_uint64
    call.argtypes = [ctypes.c_void_p, u64, u64, *[ctypes.c_void_p] * len(_NAMES)]
    call.restype = u64
    return lambda words, steps, stream: int(call(words, steps, stream, *there))
