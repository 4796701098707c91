"""Which method a call is, and whether its caller may make it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from interlace.proto.messages import HEALTH, SERVICE
from interlace.server.api_keys import Access, ApiKeys
from interlace.server.grpc.admin_calls import METHODS, WATCH, AdminCall, HealthWatchCall
from interlace.server.grpc.headers import ENCODINGS
from interlace.server.grpc.infer_calls import ModelInferCall, ModelStreamInferCall
from interlace.server.grpc.infer_decoder import InferDecoder
from interlace.server.grpc.pending_calls import PendingCalls
from interlace.server.grpc.rpc import RpcCall
from interlace.server.grpc.status import GrpcStatus
from interlace.server.grpc.stream import GrpcStream

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


class GrpcService:
    """All methods of ``inference.GRPCInferenceService`` and ``grpc.health.v1.Health``."""

    def __init__(
        self, desk: PendingCalls, intake: InferDecoder, keys: ApiKeys | None = None
    ) -> None:
        self._pending = desk
        self._decoder = intake
        self._keys = keys or ApiKeys()
        self._watches: set[HealthWatchCall] = set()
        self._streams: set[ModelStreamInferCall] = set()
        self._infer: dict[str, Callable[[GrpcStream], RpcCall]] = {
            f"/{SERVICE.full_name}/ModelInfer": lambda s: ModelInferCall(s, desk, intake),
            f"/{SERVICE.full_name}/ModelStreamInfer": self._stream,
        }

    def open(self, stream: GrpcStream) -> RpcCall | None:
        """The call that a stream's head opens; ``None`` if it was refused at once."""
        head = stream.head
        refusal = self._keys.refusal(_access(head.path), _key(head.metadata))
        if refusal is not None:
            return self._refuse(stream, GrpcStatus.UNAUTHENTICATED, refusal.detail)
        if head.encoding not in ENCODINGS:
            text = f"grpc-encoding '{head.encoding}' is not one of {', '.join(ENCODINGS)}"
            return self._refuse(stream, GrpcStatus.UNIMPLEMENTED, text)
        infer = self._infer.get(head.path)
        if infer is not None:
            return infer(stream)
        method = METHODS.get(head.path)
        if method is not None:
            return AdminCall(stream, method, self._pending, self._decoder)
        if head.path == WATCH:
            return self._watch(stream)
        return self._refuse(stream, GrpcStatus.UNIMPLEMENTED, f"unknown method {head.path[:256]}")

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

    def _stream(self, stream: GrpcStream) -> RpcCall:
        call = ModelStreamInferCall(stream, self._pending, self._decoder, self._streams.discard)
        self._streams.add(call)
        return call

    def _watch(self, stream: GrpcStream) -> RpcCall | None:
        if len(self._watches) >= _WATCHES:
            return self._refuse(
                stream, GrpcStatus.RESOURCE_EXHAUSTED, f"{_WATCHES} watches are open"
            )
        watch = HealthWatchCall(stream, self._pending, self._decoder, self._watches.discard)
        self._watches.add(watch)
        return watch

    @staticmethod
    def _refuse(stream: GrpcStream, status: GrpcStatus, text: str) -> None:
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
