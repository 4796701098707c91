"""Events and commands as plain values, for the log; tensors are left out.

Frequent events are short lists, rare ones dicts that msgspec builds and checks. A shape is kept as
text: the engine only asks whether two are equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from zlib import crc32

import msgspec

from interlace.core.messages import (
    Answer,
    Arrived,
    Cancelled,
    Carve,
    Command,
    Deployed,
    Event,
    Failure,
    Finished,
    Joined,
    Left,
    Load,
    Lost,
    Planned,
    Release,
    Run,
    Stage,
    Ticked,
    Unload,
    WakeAt,
    Withdrawn,
    Woke,
    Work,
)
from interlace.core.request import Batch, Request, Timing

#: Rare events, rebuilt by type.
_RARE: Final[Mapping[str, type[Any]]] = {
    one.__name__: one for one in (Cancelled, Deployed, Joined, Left, Lost, Planned, Withdrawn)
}
_WORKS: Final[Mapping[str, type[Any]]] = {
    one.__name__: one for one in (Carve, Load, Release, Unload)
}
#: What tells one command from another; the rest of it follows from the event.
_encode = msgspec.msgpack.Encoder().encode


def plain(event: Event) -> list[Any]:
    """An event as a list of plain values; its first says what it is."""
    match event:
        case Arrived(request=one):
            return [
                "A", one.id, one.model, one.arrived_ms, one.deadline_ms, one.rows,
                repr(one.shape), one.priority,
            ]  # fmt: skip
        case Finished():
            failure = None if event.failure is None else [event.failure.detail, event.failure.fatal]
            return [
                "F", _plain_work(event.work), len(event.outputs), failure, list(event.timing),
                list(event.units), event.resident_bytes,
            ]  # fmt: skip
        case Woke():
            return ["W"]
        case Ticked():
            return ["T"]
        case _:
            return ["E", type(event).__name__, msgspec.to_builtins(event, str_keys=False)]


def event(values: Sequence[Any], requests: Mapping[int, Request]) -> Event:
    """The event again; ``requests`` are those that arrived before and may still be named.

    Raises:
        ValueError, KeyError: the values are no event.
    """
    match values[0]:
        case "A":
            number, model, arrived_ms, deadline_ms, rows, shape, priority = values[1:]
            return Arrived(Request(number, model, arrived_ms, deadline_ms, rows, shape, priority))
        case "F":
            work, outputs, failure, timing, units, resident = values[1:]
            return Finished(
                _work(work, requests),
                tuple(() for _ in range(outputs)),
                None if failure is None else Failure(*failure),
                Timing(*timing),
                tuple(units),
                resident,
            )
        case "W":
            return Woke()
        case "T":
            return Ticked()
        case "E":
            rebuilt: Event = msgspec.convert(values[2], _RARE[values[1]], strict=False)
            return rebuilt
    raise ValueError(f"no event begins with {values[0]!r}")


def digest(commands: Sequence[Command]) -> int:
    """A number that differs when the commands do; 0 for none."""
    return crc32(_encode([_gist(one) for one in commands])) if commands else 0


def _gist(command: Command) -> list[Any]:
    match command:
        case Answer(reply=reply):
            return ["answer", reply.request.id, reply.outcome.value, reply.batch]
        case WakeAt(at_ms=at_ms):
            return ["wake", at_ms]
        case Run() | Stage() | Carve() | Load() | Release() | Unload():
            return _plain_work(command)
        case _:
            return [type(command).__name__, getattr(command, "ticket", None)]


def _plain_work(work: Work) -> list[Any]:
    match work:
        case Run(gpu=gpu, partition=partition, batch=one):
            ids = [request.id for request in one.requests]
            return [
                "R", gpu, partition, one.id, one.model, ids, one.rows, one.attempt, one.slot,
                one.padded_rows,
            ]  # fmt: skip
        case Stage(gpu=gpu, request=request, slot=slot, slots=slots):
            return ["S", gpu, request.id, slot, slots]
        case _:
            return [type(work).__name__, msgspec.to_builtins(work, str_keys=False)]


def _work(values: Sequence[Any], requests: Mapping[int, Request]) -> Work:
    match values[0]:
        case "R":
            gpu, partition, number, model, ids, rows, attempt, slot, padded = values[1:]
            members = tuple(requests[one] for one in ids)
            return Run(gpu, partition, Batch(number, model, members, rows, attempt, slot, padded))
        case "S":
            gpu, one, slot, slots = values[1:]
            return Stage(gpu, requests[one], slot, slots)
    rebuilt: Work = msgspec.convert(values[1], _WORKS[values[0]], strict=False)
    return rebuilt
