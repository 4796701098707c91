"""Events as bytes and back; commands as a digest."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Final
from zlib import crc32

import msgspec
from msgspec.structs import replace

from interlace.core.errors import Reason, ServeError
from interlace.core.messages import (
    Command,
    CopyInputs,
    Event,
    Failure,
    Fetch,
    ReportTimeout,
    RequestArrived,
    Run,
    SendReply,
    SolvePlan,
    Woke,
    WorkFinished,
)
from interlace.core.request import Timing

#: Identifies a run, copy or fetch that ends.
WorkKey = int | tuple[int | str, ...]
#: Work that an entry names by its key alone when it ends, and such work that is under way.
KeyedWork = Run | CopyInputs | Fetch
OpenWork = MutableMapping[WorkKey, KeyedWork]


class WorkEnded(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The end of a run, copy or fetch: ``WorkFinished`` with a key and a number of outputs."""

    key: WorkKey
    outputs: int
    failure: Failure | None
    timing: Timing
    errors: tuple[ServeError | None, ...] = ()


def _encode_other(value: object) -> object:
    """Encode a mapping that is no dict, or an error of a reply."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, ServeError):
        return value.values()
    raise NotImplementedError(f"{type(value).__name__} has no form in an event log")


def _decode_other(kind: type, value: Any) -> Any:
    """Decode an error of a request; or a shape, the one ``Hashable``: sequences are lists."""
    if kind is ServeError:
        reason, detail, retry_after_ms, late_ms = value
        return ServeError(Reason(reason), detail, retry_after_ms=retry_after_ms, late_ms=late_ms)
    return tuple(_decode_other(kind, one) for one in value) if isinstance(value, list) else value


#: Values of the engine as MessagePack.
ENCODE: Final = msgspec.msgpack.Encoder(enc_hook=_encode_other).encode
_DECODE: Final = msgspec.msgpack.Decoder(
    tuple[float, int, Event | WorkEnded], dec_hook=_decode_other
).decode
_OUTER: Final = msgspec.msgpack.Decoder(tuple[float, int, msgspec.Raw]).decode
_EVENT: Final = msgspec.msgpack.Decoder(Event, dec_hook=_decode_other).decode
#: How events begin that ``glance`` passes over, after the byte of their list: a short string.
_PASSED: Final = tuple(
    bytes([0xA0 + len(kind.__name__)]) + kind.__name__.encode() for kind in (WorkEnded, Woke)
)
_NAME_BYTES: Final = 10


def key_of(work: KeyedWork) -> WorkKey:
    """Return the key under which a run, copy or fetch is found when it ends."""
    if isinstance(work, Run):
        return work.batch.id
    if isinstance(work, Fetch):
        return (work.gpu, work.model)
    return (work.request.id, work.gpu, work.slot)


def track(begun: OpenWork, event: Event, commands: Sequence[Command]) -> None:
    """Update ``begun`` with what an event ended and what its commands began."""
    if type(event) is WorkFinished and isinstance(event.work, KeyedWork):
        begun.pop(key_of(event.work), None)
    for command in commands:
        if isinstance(command, KeyedWork):
            begun[key_of(command)] = command


def encode(now_ms: float, event: Event, commands: Sequence[Command]) -> bytes:
    """Encode an entry of a log without tensors: their bytes are gone when a log is read."""
    logged: Event | WorkEnded = event
    if type(event) is RequestArrived:
        logged = RequestArrived(replace(event.request, inputs=(), outputs=()))
    elif type(event) is WorkFinished and isinstance(event.work, KeyedWork):
        outputs = len(event.outputs)
        key = key_of(event.work)
        logged = WorkEnded(key, outputs, event.failure, event.timing, event.errors)
    return ENCODE((now_ms, digest(commands), logged))


def decode(entry: bytes, begun: Mapping[WorkKey, KeyedWork]) -> tuple[float, int, Event]:
    """Decode an entry to its time, the digest of the commands, and the event.

    ``begun`` is keyed work that has not ended: an entry only names the one it ends.

    Raises:
        ValueError: the entry ends work that was never begun.
        msgspec.MsgspecError: it is no entry of this version.
    """
    now_ms, commands, event = _DECODE(entry)
    if isinstance(event, WorkEnded):
        if event.key not in begun:
            raise ValueError(f"work {event.key} ends that was never begun")
        outputs = ((),) * event.outputs
        work, errors = begun[event.key], event.errors
        event = WorkFinished(work, outputs, event.failure, event.timing, errors=errors)
    return now_ms, commands, event


def glance(entry: bytes) -> tuple[float, Event | None]:
    """Decode an entry to its time and event; ``None`` for ends of work and for wakes.

    For readers of the traffic alone, who replay nothing: most of a log they pass over, unread.

    Raises:
        ValueError: it is no entry.
    """
    try:
        now_ms, _, event = _OUTER(entry)
        passed = bytes(memoryview(event)[1 : 1 + _NAME_BYTES]).startswith(_PASSED)
        return now_ms, None if passed else _EVENT(event)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"no entry of an event log: {error}") from None


def digest(commands: Sequence[Command]) -> int:
    """Return a checksum of commands, 0 for none; requests count by id, without tensors."""
    return crc32(ENCODE([_without_tensors(one) for one in commands])) if commands else 0


def _without_tensors(command: Command) -> object:
    match command:
        case SendReply(reply=reply):
            return ("reply", reply.request.id, reply.outcome, reply.batch, reply.error)
        case Run(batch=batch):
            ids = [request.id for request in batch.requests]
            return (ids, replace(command, batch=replace(batch, requests=())))
        case CopyInputs(gpu=gpu, request=request, slot=slot, slots=slots):
            return ("copy", gpu, request.id, slot, slots)
        case SolvePlan(ticket=ticket, demand=demand, fleet=fleet):
            return ("plan", ticket, demand, [gpu.id for gpu in fleet.gpus])
        case ReportTimeout(request=request, error=error):
            return ("timeout", request.id, error)
        case _:
            return command
