"""The compiler that everything here goes through; it is an extra, named where it is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

try:
    from numba import njit
except ImportError as absent:
    raise ImportError(
        "the fast simulator is compiled by numba: pip install 'interlace[fast]'"
    ) from absent

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Machine code of a function, kept on disk between processes.

    Floating point stays in order (no ``fastmath``): results are the engine's to the last bit.
    Infinity is written ``inf``, never ``float("inf")``: compiled, that parses its text at every
    call and was 95 % of all time.
    """
    return cast(F, njit(cache=True, error_model="numpy")(function))
