"""Which method a call is, and whether its caller may make it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from interlace.server.administration.methods import METHODS, AdminAnswers
from interlace.server.api_keys import Access, ApiKeys
from interlace.server.errors import GrpcStatus
from interlace.server.grpc.admin_calls import AdminCall, Administration, HealthWatchCall, RpcMethod
from interlace.server.grpc.headers import ENCODINGS
from interlace.server.grpc.infer_calls import CallFront, ModelInferCall, ModelStreamInferCall
from interlace.server.grpc.stream import GrpcStream, RpcCall

MODEL_INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
MODEL_STREAM_INFER: Final = "/inference.GRPCInferenceService/ModelStreamInfer"
_WATCH: Final = "/grpc.health.v1.Health/Watch"
_WATCHES_MAX: Final = 256

#: Makes the call of a stream; ``None`` if it refuses.
OpenCall = Callable[[GrpcStream], RpcCall | None]


class GrpcService:
    """All methods of ``inference.GRPCInferenceService`` and ``grpc.health.v1.Health``."""

    def __init__(
        self,
        inference: CallFront,
        api: AdminAnswers,
        keys: ApiKeys | None = None,
    ) -> None:
        self._inference = inference
        self._admin = Administration(api, inference.limits.max_unpacked_bytes, inference.heap)
        self._keys = keys or ApiKeys()
        self._watches: set[HealthWatchCall] = set()
        self._streams: set[ModelStreamInferCall] = set()
        self._methods: dict[str, tuple[Access, OpenCall]] = {
            MODEL_INFER: (Access.USE, self._infer),
            MODEL_STREAM_INFER: (Access.USE, self._stream),
        }
        for method in METHODS:
            if method.rpc:
                make = self._watch if method.rpc == _WATCH else self._administer
                self._methods[method.rpc] = (method.access, partial(make, RpcMethod(method)))

    @property
    def paths(self) -> frozenset[str]:
        """Every method that there is."""
        return frozenset(self._methods)

    def open(self, stream: GrpcStream) -> RpcCall | None:
        """The call that a stream's head opens; ``None`` if it was refused at once."""
        head = stream.head
        access, make = self._methods.get(head.path, (Access.USE, None))
        refusal = self._keys.refusal(access, head.key)
        if refusal is not None:
            stream.refuse(refusal)
        elif head.encoding not in ENCODINGS:
            text = f"grpc-encoding '{head.encoding}' is not one of {', '.join(ENCODINGS)}"
            stream.fail(GrpcStatus.UNIMPLEMENTED, text)
        elif make is None:
            stream.fail(GrpcStatus.UNIMPLEMENTED, f"unknown method {head.path[:256]}")
        else:
            return make(stream)
        return None

    @property
    def idle(self) -> bool:
        """Whether nothing that was asked is left to be answered."""
        return not self._inference.count and not self._admin.tasks.running

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

    def _infer(self, stream: GrpcStream) -> RpcCall:
        return ModelInferCall(stream, self._inference)

    def _stream(self, stream: GrpcStream) -> RpcCall:
        call = ModelStreamInferCall(stream, self._inference, self._streams.discard)
        self._streams.add(call)
        return call

    def _administer(self, method: RpcMethod, stream: GrpcStream) -> RpcCall:
        return AdminCall(stream, method, self._admin)

    def _watch(self, method: RpcMethod, stream: GrpcStream) -> RpcCall | None:
        if len(self._watches) >= _WATCHES_MAX:
            text = f"{_WATCHES_MAX} watches are open"
            stream.fail(GrpcStatus.RESOURCE_EXHAUSTED, text)
            return None
        watch = HealthWatchCall(stream, method, self._admin, self._watches.discard)
        self._watches.add(watch)
        return watch
