"""The loop that polls flags without the GIL, from whichever compiler the machine has."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Final

#: In the order of preference; each module has ``compile_poll() -> PollLoop``.
_COMPILERS: Final = {
    "the C compiler": "interlace.device.cuda.completion.c_loops",
    "numba": "interlace.device.cuda.completion.numba_loops",
}

#: Watches flags until it is told to stop; ``sources/loops.c`` describes the arguments.
PollLoop = Callable[..., None]


class NoCompilerError(Exception):
    """Neither a C compiler nor numba works here, and why."""


@cache
def poll_loop() -> tuple[PollLoop, tuple[str, ...]]:
    """The loop, compiled once in this process, and why preferred compilers were passed over.

    Raises:
        NoCompilerError: there is neither.
    """
    failures: list[str] = []
    for name, module in _COMPILERS.items():
        try:
            poll: PollLoop = import_module(module).compile_poll()
            _check(poll)
        except Exception as error:  # numba raises anything with a NumPy that it does not know
            failures.append(f"{name}: {type(error).__name__}: {error}")
        else:
            return poll, tuple(failures)
    raise NoCompilerError("; ".join(failures))


def _check(poll: PollLoop) -> None:
    """Call it once with its stop word set: it returns before it has looked at anything."""
    word, scratch = (ctypes.c_uint64 * 1)(0), (ctypes.c_uint64 * 2)(0, 1)
    address = ctypes.addressof(word)
    poll(address, address, address, 1, 64, -1, -1, ctypes.addressof(scratch), 0)
