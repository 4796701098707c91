"""Numbers of bytes as people write them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

MOST_BYTES: Final = 1 << 62
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT]?i?)B?")
_UNITS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "": 1,
        **{letter: 1000**power for power, letter in enumerate("kmgt", start=1)},
        **{f"{letter}i": 1024**power for power, letter in enumerate("kmgt", start=1)},
    }
)


def parse_bytes(text: str) -> int:
    """The number in ``"536870912"``, ``"512MB"`` or ``"1.5 GiB"``.

    Raises:
        ValueError: it is none, or not above 0.
    """
    match = _SIZE.fullmatch(text.strip())
    size = float(match[1]) * _UNITS.get(match[2].lower(), 0) if match else 0.0
    if not 1 <= size < MOST_BYTES:
        raise ValueError(f"'{text}' is no number of bytes")
    return int(size)
