"""Values of a scenario file, checked: the key, what is there, and what is expected."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from interlace.core.user_errors import InputError

#: Above every rate, time and size that is meant seriously.
_MOST: Final = 1e12


def number(path: Path, key: str, value: Any, least: float = 0.0, most: float = _MOST) -> float:
    """A finite number in its bounds.

    Raises:
        InputError: it is none.
    """
    legal = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not legal or not least <= value <= most:
        raise InputError(
            f"{path}: {key} is {value!r}; expected a number from {least:g} to {most:g}"
        )
    return float(value)


def whole(path: Path, key: str, value: Any, most: int = 100_000) -> int:
    """A whole number from 1.

    Raises:
        InputError: it is none.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise InputError(f"{path}: {key} is {value!r}; expected a whole number from 1 to {most}")
    return value


def known(path: Path, prefix: str, table: Iterable[str], keys: tuple[str, ...]) -> None:
    """Every key of ``table`` is one of ``keys``.

    Raises:
        InputError: one is not; the nearest and all that are known.
    """
    for key in table:
        if key not in keys:
            raise InputError(
                f"{path}: unknown key {prefix}{key}{near(key, keys)}; known: {', '.join(keys)}"
            )


def near(name: str, names: Iterable[str]) -> str:
    """A hint at what was meant; empty if nothing comes close."""
    found = get_close_matches(name, list(names), n=1)
    return f" (did you mean {found[0]}?)" if found else ""
