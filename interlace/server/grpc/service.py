"""Which method a call is, and whether its caller may make it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from interlace.server.grpc.admin import METHODS, WATCH, AdminCall, WatchCall
from interlace.server.grpc.call import Call
from interlace.server.grpc.desk import Desk
from interlace.server.grpc.headers import ENCODINGS
from interlace.server.grpc.infer import InferCall, StreamInferCall
from interlace.server.grpc.intake import Intake
from interlace.server.grpc.status import Status
from interlace.server.grpc.stream import Stream
from interlace.server.keys import Access, Keys
from interlace.server.proto.messages import HEALTH, SERVICE

#: Probes: they need no API key.
_OPEN: Final = frozenset(
    (
        f"/{HEALTH.full_name}/Check",
        f"/{HEALTH.full_name}/Watch",
        f"/{SERVICE.full_name}/ServerLive",
        f"/{SERVICE.full_name}/ServerReady",
        f"/{SERVICE.full_name}/ModelReady",
    )
)
#: What changes the server, or what others use of it.
_CHANGES: Final = frozenset(
    f"/{SERVICE.full_name}/{name}"
    for name in (
        "RepositoryModelLoad",
        "RepositoryModelUnload",
        "SystemSharedMemoryRegister",
        "SystemSharedMemoryUnregister",
    )
)
_WATCHES: Final = 256


class InferenceService:
    """All methods of ``inference.GRPCInferenceService`` and ``grpc.health.v1.Health``."""

    def __init__(self, desk: Desk, intake: Intake, keys: Keys | None = None) -> None:
        self._desk = desk
        self._intake = intake
        self._keys = keys or Keys()
        self._watches: set[WatchCall] = set()
        self._streams: set[StreamInferCall] = set()
        self._infer: dict[str, Callable[[Stream], Call]] = {
            f"/{SERVICE.full_name}/ModelInfer": lambda s: InferCall(s, desk, intake),
            f"/{SERVICE.full_name}/ModelStreamInfer": self._stream,
        }

    def open(self, stream: Stream) -> Call | None:
        """The call that a stream's head opens; ``None`` if it was refused at once."""
        head = stream.head
        refusal = self._keys.refusal(_access(head.path), _key(head.metadata))
        if refusal is not None:
            return self._refuse(stream, Status.UNAUTHENTICATED, refusal.detail)
        if head.encoding not in ENCODINGS:
            text = f"grpc-encoding '{head.encoding}' is not one of {', '.join(ENCODINGS)}"
            return self._refuse(stream, Status.UNIMPLEMENTED, text)
        infer = self._infer.get(head.path)
        if infer is not None:
            return infer(stream)
        method = METHODS.get(head.path)
        if method is not None:
            return AdminCall(stream, method, self._desk, self._intake)
        if head.path == WATCH:
            return self._watch(stream)
        return self._refuse(stream, Status.UNIMPLEMENTED, f"unknown method {head.path[:256]}")

    def look(self) -> None:
        """Bring the health watches up to date."""
        for watch in list(self._watches):
            watch.look()

    def drain(self) -> None:
        """Watches and idle streams never end by themselves: end them, so that the server can."""
        for watch in list(self._watches):
            watch.close()
        self._watches.clear()
        for stream in list(self._streams):
            stream.close()

    def _stream(self, stream: Stream) -> Call:
        call = StreamInferCall(stream, self._desk, self._intake, self._streams.discard)
        self._streams.add(call)
        return call

    def _watch(self, stream: Stream) -> Call | None:
        if len(self._watches) >= _WATCHES:
            return self._refuse(stream, Status.RESOURCE_EXHAUSTED, f"{_WATCHES} watches are open")
        watch = WatchCall(stream, self._desk, self._intake, self._watches.discard)
        self._watches.add(watch)
        return watch

    @staticmethod
    def _refuse(stream: Stream, status: Status, text: str) -> None:
        stream.fail(status, text)


def _access(path: str) -> Access:
    if path in _OPEN:
        return Access.PROBE
    return Access.CHANGE if path in _CHANGES else Access.USE


def _key(metadata: Mapping[str, str]) -> bytes:
    given = metadata.get("x-api-key", "")
    scheme, _, value = metadata.get("authorization", "").partition(" ")
    if not given and scheme.lower() == "bearer":
        given = value.strip()
    return given.encode()
