"""Events as bytes and back; commands as a digest."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, MutableMapping, Sequence
from typing import Any, Final
from zlib import crc32

import msgspec

from interlace.core.errors import ServeError
from interlace.core.messages import (
    Command,
    CopyInputs,
    CreatePartition,
    EpochEnded,
    Event,
    Evict,
    Failure,
    Fetch,
    GpuJoined,
    GpuLeft,
    Load,
    ModelsDeployed,
    ModelWithdrawn,
    PartitionLost,
    PlanChanged,
    PlanSolved,
    RefusedUpstream,
    ReleasePartition,
    ReportTimeout,
    RequestArrived,
    RequestCancelled,
    Run,
    SendReply,
    SolvePlan,
    TierChanged,
    TimedOut,
    TimeoutAt,
    Unload,
    WakeAt,
    Woke,
    Work,
    WorkFinished,
)
from interlace.core.request import Request, Timing

#: What a finished run, copy or fetch is found again by.
WorkKey = Hashable
#: Work that is named by a key when it ends, and what of it was begun and has not ended.
KeyedWork = Run | CopyInputs | Fetch
OpenWork = MutableMapping[WorkKey, KeyedWork]

#: Kinds of event, in files: never renumbered, only added to.
_ARRIVED, _RAN, _STAGED, _WORKED, _WOKE, _TICKED = range(6)
_PLAIN: Final = {
    6: RequestCancelled,
    7: ModelsDeployed,
    8: ModelWithdrawn,
    9: PartitionLost,
    10: PlanSolved,
    11: GpuJoined,
    12: GpuLeft,
    13: RefusedUpstream,
    14: TimedOut,
    15: PlanChanged,
    17: TierChanged,
}
_NUMBERS: Final[Mapping[type, int]] = {kind: number for number, kind in _PLAIN.items()}
_WORKS: Final = {0: CreatePartition, 1: ReleasePartition, 2: Load, 3: Unload, 4: Evict}
_WORK_NUMBERS: Final[Mapping[type, int]] = {kind: number for number, kind in _WORKS.items()}

_UNTYPED: Final = msgspec.msgpack.Decoder()
_DECODERS: Final[Mapping[type, Any]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in (*_PLAIN.values(), *_WORKS.values())
}


def _other(value: object) -> object:
    """Encode what MessagePack does not know: mappings other than dicts."""
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError(f"{type(value).__name__} has no form in an event log")


#: Values of the engine as MessagePack.
ENCODE: Final = msgspec.msgpack.Encoder(enc_hook=_other).encode


def key_of(work: KeyedWork) -> WorkKey:
    """The key under which a run, copy or fetch is found when it ends."""
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
    """An entry of a log. Tensors are left out: their bytes are gone when a log is read."""
    return ENCODE((now_ms, digest(commands), *_fields(event)))


def decode(entry: bytes, begun: Mapping[WorkKey, KeyedWork]) -> tuple[float, int, Event]:
    """Time, digest of the commands, and the event of an entry.

    ``begun`` is keyed work that has not ended: an entry only names the one it ends.

    Raises:
        ValueError: the entry is of no known kind, or ends what was never begun.
        msgspec.MsgspecError: it is none.
    """
    now_ms, commands, kind, *fields = _UNTYPED.decode(entry)
    return now_ms, commands, _event(kind, fields, begun)


def glance(entry: bytes) -> tuple[float, Event | None]:
    """Time and event of an entry that stands by itself; ``None`` where it ends work begun before.

    For readers of the traffic alone, who replay nothing.

    Raises:
        ValueError: it is no entry.
    """
    try:
        now_ms, _, kind, *fields = _UNTYPED.decode(entry)
        if kind in (_RAN, _STAGED, _WORKED):
            return now_ms, None
        return now_ms, _event(kind, fields, {})
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"no entry of an event log: {error}") from None


def digest(commands: Sequence[Command]) -> int:
    """A checksum of commands, 0 for none; requests count by id, without tensors."""
    return crc32(ENCODE([_told(one) for one in commands])) if commands else 0


def _fields(event: Event) -> tuple[object, ...]:
    match event:
        case RequestArrived(request=r):
            return (
                _ARRIVED, r.id, r.model, r.arrived_ms, r.deadline_ms, r.rows, r.shape, r.priority
            )  # fmt: skip
        case WorkFinished():
            return _finished(event)
        case Woke():
            return (_WOKE,)
        case EpochEnded():
            return (_TICKED,)
        case _:
            return (_NUMBERS[type(event)], ENCODE(event))


def _finished(event: WorkFinished) -> tuple[object, ...]:
    failed = event.failure
    failure = failed and (failed.detail, failed.fatal, failed.innocent, failed.bad_input)
    match event.work:
        case Run(batch=batch):
            return (_RAN, batch.id, len(event.outputs), failure, event.timing)
        case CopyInputs(gpu=gpu, request=request, slot=slot):
            return (_STAGED, request.id, gpu, slot, failure)
        case Fetch(gpu=gpu, model=model):
            return (_STAGED, gpu, model, failure)
        case work:
            number = _WORK_NUMBERS[type(work)]
            return (_WORKED, number, ENCODE(work), failure, event.units, event.resident_bytes)


def _event(kind: int, fields: Sequence[Any], begun: Mapping[WorkKey, KeyedWork]) -> Event:
    match kind:
        case 0:
            return RequestArrived(_request(fields))
        case 1:
            batch, outputs, failure, timing = fields
            work = _begun(batch, begun)
            return WorkFinished(work, ((),) * outputs, _failure(failure), Timing(*timing))
        case 2:
            *key, failure = fields
            return WorkFinished(_begun(tuple(key), begun), failure=_failure(failure))
        case 3:
            number, text, failure, units, resident_bytes = fields
            done: Work = _DECODERS[_WORKS[number]].decode(text)
            return WorkFinished(
                done, failure=_failure(failure), units=tuple(units), resident_bytes=resident_bytes
            )
        case 4:
            return Woke()
        case 5:
            return EpochEnded()
        case _:
            if kind not in _PLAIN:
                raise ValueError(f"an event of the unknown kind {kind}: a newer version wrote it")
            plain: Event = _DECODERS[_PLAIN[kind]].decode(fields[0])
            return plain


def _request(fields: Sequence[Any]) -> Request:
    number, model, arrived_ms, deadline_ms, rows, shape, priority = fields
    shape = _hashable(shape)
    return Request(number, model, arrived_ms, deadline_ms, rows, shape, priority)


def _begun(key: WorkKey, begun: Mapping[WorkKey, KeyedWork]) -> KeyedWork:
    if key not in begun:
        raise ValueError(f"work {key} ends that was never begun")
    return begun[key]


def _failure(fields: Sequence[Any] | None) -> Failure | None:
    return None if fields is None else Failure(*fields)


def _hashable(value: Any) -> Hashable:
    """Sequences are decoded as lists; shapes must be hashable."""
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def _told(command: Command) -> object:
    match command:
        case SendReply(reply=reply):
            error = reply.error and _error(reply.error)
            return (0, reply.request.id, reply.outcome, reply.batch, error)
        case WakeAt(at_ms=at_ms):
            return (1, at_ms)
        case Run(gpu=gpu, partition=partition, batch=b, limit_ms=limit_ms):
            ids = [request.id for request in b.requests]
            return (
                2, gpu, partition, b.id, b.model, ids, b.attempt, b.slot, b.padded_rows, limit_ms
            )  # fmt: skip
        case CopyInputs(gpu=gpu, request=request, slot=slot, slots=slots):
            return (3, gpu, request.id, slot, slots)
        case SolvePlan(ticket=ticket, demand=demand, fleet=fleet):
            return (4, ticket, demand, [gpu.id for gpu in fleet.gpus])
        case TimeoutAt(at_ms=at_ms):
            return (5, at_ms)
        case ReportTimeout(request=request, error=error):
            return (6, request.id, _error(error))
        case Fetch(gpu=gpu, partition=partition, model=model, plan=plan):
            return (7, gpu, partition, model, [(step.via, step.link) for step in plan.steps])
        case _:
            return (type(command).__name__, command)


def _error(error: ServeError) -> tuple[object, ...]:
    return (error.reason, error.detail, error.retry_after_ms, error.late_ms)
