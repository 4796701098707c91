"""The compiler that everything here goes through; it is an extra, named where it is missing."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from interlace.engine import contention, latency_estimator, retries, timeouts
from interlace.policy import batching

try:
    from numba import config, njit
except ImportError as absent:
    raise ImportError(
        "the fast simulator is compiled by numba: pip install 'interlace[fast]'"
    ) from absent

#: No counting of references: nothing here makes or keeps an array. Everything inlined: a call
#: would hand over every array of the world.
_OPTIONS: Final = {"error_model": "numpy", "_nrt": False, "forceinline": True}

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Machine code of a function, kept on disk between processes.

    Floating point stays in order (no ``fastmath``): results are the engine's to the last bit.
    Infinity is written ``inf``, never ``float("inf")``: compiled, that parses its text at every
    call.
    """
    before = config.CACHE_DIR
    config.CACHE_DIR = str(_kept())
    try:
        keep = os.access(_kept(), os.W_OK)
        return cast(F, njit(cache=keep, **_OPTIONS)(function))
    finally:
        config.CACHE_DIR = before


@cache
def _kept() -> Path:
    """Where machine code of these very sources is kept.

    Numba looks at a function's own file only, and would keep what it had inlined of others: another
    directory for each state of everything that is compiled in.
    """
    here = Path(__file__).parent
    sources = [
        *sorted(here.glob("*.py")),
        *(
            Path(str(m.__file__))
            for m in (latency_estimator, contention, retries, timeouts, batching)
        ),
    ]
    digest = sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    directory = here / "__pycache__" / digest
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return here  # not ours to write to: nothing is kept
    return directory
