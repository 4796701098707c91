"""Reading an event log back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from interlace.core.hardware import Fleet
from interlace.core.messages import Arrived, Event
from interlace.core.request import Request
from interlace.runtime.eventlog.plain import event
from interlace.runtime.eventlog.writer import MAGIC

#: Requests that may still be named; far above what any queue and pool holds.
_REMEMBERED = 1_000_000


class LogError(ValueError):
    """A file that is no event log, or not one of this version."""


class Header(NamedTuple):
    """Which system decided, over which accelerators."""

    system: str
    fleet: Fleet


class Entry(NamedTuple):
    """One event, its time, and the digest of the commands that it gave."""

    now_ms: float
    event: Event
    digest: int


def read_header(path: Path) -> Header:
    """What the log begins with.

    Raises:
        LogError: it is no event log.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return _header(path, file)


def read_log(path: Path) -> Iterator[Entry]:
    """The entries in order. One cut short at the end, by a crash, is left out.

    Raises:
        LogError: it is no event log, or damaged in the middle.
        OSError: it cannot be read.
    """
    requests: dict[int, Request] = {}
    with path.open("rb") as file:
        _header(path, file)
        for values in _frames(path, file):
            if values[0] == "full":
                return
            try:
                happened = event(values[2], requests)
            except (KeyError, ValueError, TypeError, msgspec.ValidationError) as error:
                raise LogError(f"{path}: an entry at {values[0]} ms is damaged: {error}") from None
            if isinstance(happened, Arrived):
                requests[happened.request.id] = happened.request
                if len(requests) > _REMEMBERED:
                    del requests[next(iter(requests))]
            yield Entry(values[0], happened, values[1])


def _header(path: Path, file: BinaryIO) -> Header:
    if file.read(len(MAGIC)) != MAGIC:
        raise LogError(f"{path}: not an event log of this version (interlace serve --log)")
    values = next(_frames(path, file), None)
    if values is None or values[0] != "H":
        raise LogError(f"{path}: the log has no header")
    return Header(values[1], msgspec.convert(values[2], Fleet, strict=False))


def _frames(path: Path, file: BinaryIO) -> Iterator[list[Any]]:
    decode = msgspec.msgpack.Decoder(list).decode
    while len(head := file.read(4)) == 4:
        data = file.read(int.from_bytes(head, "big"))
        if len(data) < int.from_bytes(head, "big"):
            return  # cut short by a crash
        try:
            yield decode(data)
        except msgspec.DecodeError as error:
            raise LogError(f"{path}: damaged before byte {file.tell()}: {error}") from None
