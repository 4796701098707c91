"""The header of a log: which run it is of."""

from __future__ import annotations

from typing import Final

import msgspec

from interlace.core.hardware import Fleet, Gpu

MAGIC: Final = b"interlace event log 1\n"
LENGTH: Final = 4  #: bytes of a frame's length


class LogHeader(msgspec.Struct, frozen=True):
    """Written first in every file.

    ``system`` names the catalog's row, ``row+other`` where the dispatcher is another row's.
    ``fleet`` and ``reserve`` are what the engine was made with. ``from_ms`` to ``until_ms`` is
    when arrivals are measured, on the run's clock; ``until_ms`` is ``None`` while that is unknown.
    ``checkpoint`` is the engine as it was when the file was begun; empty for a fresh one.
    """

    version: str
    system: str
    fleet: Fleet
    reserve: tuple[Gpu, ...] = ()
    source: str = "serve"  #: the command that wrote it
    started: str = ""  #: wall-clock time of the run's time 0, ISO 8601; empty in virtual time
    from_ms: float = 0.0
    until_ms: float | None = None
    checkpoint: bytes = b""


def frame(body: bytes) -> bytes:
    """A body with its length before it."""
    return len(body).to_bytes(LENGTH, "little") + body
