"""Events as bytes and back, commands as a digest, and the files that they are read from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final
from zlib import crc32

import msgspec
from msgspec.structs import replace

from interlace.core.errors import Reason, RepositoryError, ServeError
from interlace.core.hardware import Fleet, Gpu
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
from interlace.core.profile import Profile
from interlace.core.request import Timing
from interlace.formats.page_cache import open_regular

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


#: How the file of any version begins, and of the version that is written and read.
ANY_MAGIC: Final = b"interlace event log "
MAGIC: Final = ANY_MAGIC + b"2\n"
LENGTH: Final = 4  #: bytes of a frame's length


class LogHeader(msgspec.Struct, frozen=True):
    """Written first in every file.

    ``system`` names the catalog's row, ``row+other`` where the dispatcher is another row's.
    ``fleet`` and ``reserve`` are what the engine was made with. ``from_ms`` to ``until_ms`` is
    when arrivals are measured, on the run's clock; ``until_ms`` is ``None`` while that is unknown.
    ``checkpoint`` is the engine as it was when the file was begun; empty for a fresh one. So many
    events before it (``lost_events``, the first at ``lost_from_ms``) could not be written.
    ``profiles`` are those of the models deployed then: readers of the traffic restore no engine.
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
    lost_events: int = 0
    lost_from_ms: float = 0.0
    profiles: dict[str, Profile] = {}


def frame(body: bytes) -> bytes:
    """A body with its length before it."""
    return len(body).to_bytes(LENGTH, "little") + body


_DECODER = msgspec.msgpack.Decoder(LogHeader)


class LogError(ValueError):
    """The file is no log or is broken: what is wrong, and where."""


@dataclass(slots=True)
class LogFile:
    """A log that can be read any number of times; a run that still writes to it may go on.

    ``cut_bytes`` are those of a last entry that is not whole: the run was killed while it wrote
    them, or is writing them. They are passed over. Known once the entries have been read.
    """

    path: Path
    header: LogHeader
    begins: int
    cut_bytes: int = 0

    def entries(self) -> Iterator[bytes]:
        """Every whole entry, in order."""
        with self.path.open("rb") as file:
            file.seek(self.begins)
            while True:
                body, missing = _frame(file)
                if body is None:
                    self.cut_bytes = missing
                    return
                yield body


def open_log(path: Path) -> LogFile:
    """The log in ``path``.

    Raises:
        LogError: it is none.
        OSError: it cannot be read.
    """
    try:
        file = open_regular(path)
    except RepositoryError as error:
        raise LogError(str(error)) from None
    with file:
        magic = file.read(len(MAGIC))
        if not magic.startswith(ANY_MAGIC):
            raise LogError(f"{path}: not an event log (interlace serve --log writes them)")
        if magic != MAGIC:
            found = magic.removeprefix(ANY_MAGIC).decode("ascii", "replace").strip()
            raise LogError(
                f"{path}: an event log of format {found}; expected format 2: read it with the "
                "version of Interlace that wrote it"
            )
        body, _ = _frame(file)
        begins = file.tell()
    if body is None:
        raise LogError(f"{path}: it ends within its header")
    try:
        return LogFile(path, _DECODER.decode(body), begins)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise LogError(f"{path}: its header is of another version: {error}") from None


def _frame(file: IO[bytes]) -> tuple[bytes | None, int]:
    """The next frame; if it is not whole, ``None`` and how many bytes of it are there."""
    head = file.read(LENGTH)
    if len(head) < LENGTH:
        return None, len(head)
    length = int.from_bytes(head, "little")
    body = file.read(length)
    return (body, 0) if len(body) == length else (None, LENGTH + len(body))
