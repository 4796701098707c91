"""The loops that run without the GIL, from whichever compiler the machine has."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from importlib import import_module
from typing import Final, NamedTuple

#: In the order of preference; each module has ``made() -> Loops``.
_MAKERS: Final = {
    "the C compiler": "interlace.device.cuda.completion.c_loops",
    "numba": "interlace.device.cuda.completion.numba_loops",
}


class CompiledLoops(NamedTuple):
    """``poll`` watches flags until told to stop; ``sources/loops.c`` says with which arguments.

    ``count_and_tell`` is the address of a C function that takes the address of two words, a file
    descriptor and a count, and adds one to both. ``owner`` keeps the code loaded.
    """

    poll: Callable[..., None]
    count_and_tell: int
    owner: object


class NoCompilerError(Exception):
    """Neither a C compiler nor numba is of use here, and why."""


@cache
def compiled_loops() -> tuple[CompiledLoops, tuple[str, ...]]:
    """The loops, tried once in this process, and what was of no use before them.

    Raises:
        NoLoops: there is neither.
    """
    useless: list[str] = []
    for name, module in _MAKERS.items():
        try:
            made: CompiledLoops = import_module(module).made()
            _try(made)
        except Exception as error:  # numba raises anything with a NumPy that it does not know
            useless.append(f"{name}: {type(error).__name__}: {error}")
        else:
            return made, tuple(useless)
    raise NoCompilerError("; ".join(useless))


def _try(made: CompiledLoops) -> None:
    """Call both once.

    Raises:
        RuntimeError: they do not do what they are for.
    """
    with ExitStack() as steps:
        tell_fd, wake_fd = (os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(2))
        steps.callback(os.close, tell_fd)
        steps.callback(os.close, wake_fd)
        words = (ctypes.c_uint64 * 2)(tell_fd, 0)
        call = ctypes.CFUNCTYPE(None, ctypes.c_uint64)(made.count_and_tell)
        call(ctypes.addressof(words))
        flags, scratch = (ctypes.c_uint64 * 1)(7), (ctypes.c_uint64 * 2)(0, 1)
        place = ctypes.addressof(flags)
        made.poll(place, place, place, 1, 64, tell_fd, wake_fd, ctypes.addressof(scratch), 0)
        if words[1] != 1 or os.eventfd_read(tell_fd) != 1:
            raise RuntimeError("a trial call did not tell its descriptor")
