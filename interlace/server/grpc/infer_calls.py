"""The gRPC methods ModelInfer and ModelStreamInfer, and inference by this server's data plane."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from interlace.core.deployment_key import DeploymentKey
from interlace.core.errors import ServeError
from interlace.core.request import PartialResponse, Reply
from interlace.core.tensor import BYTES, Span, Tensor
from interlace.proto.messages import ModelInferResponse
from interlace.server.dataplane.call import DecodedRequest, InferenceCall, classified
from interlace.server.dataplane.inference import Inference, InferenceContext, server_timing
from interlace.server.dataplane.plane import output_order
from interlace.server.errors import GRPC_STATUS, GrpcStatus
from interlace.server.grpc.buffered_sink import BufferedSink
from interlace.server.grpc.frame_writer import Buffer, OnSent
from interlace.server.grpc.headers import TRAILERS_OK
from interlace.server.grpc.infer_decoder import DecodedInfer, InferDecoder, InferSink, UnreadInfer
from interlace.server.grpc.infer_wire import (
    FINAL_RESPONSE,
    MORE_RESPONSES,
    response,
    response_parameters,
    stream_error,
    stream_response,
)
from interlace.server.grpc.stream import GrpcStream, MessageSink
from interlace.server.limits import GenerationalCache, GrpcLimits, HeapBudget

_EMPTY_FINAL: Final = "triton_enable_empty_final_response"
#: What one stream may have in flight before its next request is refused.
_STREAM_IN_FLIGHT: Final = 4096


class InferRequest(Protocol):
    """One request of a call. Once started it answers its call exactly once, unless cancelled."""

    @property
    def id(self) -> str: ...
    def start(self) -> None: ...
    def cancel(self) -> None:
        """No answer is wanted any more."""


class CallFront(Protocol):
    """Infers what calls ask for: here, or at a node behind this router."""

    @property
    def limits(self) -> GrpcLimits: ...
    @property
    def heap(self) -> HeapBudget: ...  #: of unfinished messages
    @property
    def count(self) -> int: ...  #: requests without an answer
    def whole(self, call: InferCall, message: memoryview) -> None:
        """Take a message that is there in one piece; the call receives the request, or why not."""

    def sink(self, call: InferCall, nbytes: int, compressed: bool) -> MessageSink:
        """Where a message that comes in pieces, or compressed, is put."""


class InferCall:
    """A call whose messages are requests; ``endpoint`` is its method in errors."""

    __slots__ = ("_front", "stream")
    endpoint = ""
    streaming = False

    def __init__(self, stream: GrpcStream, front: CallFront) -> None:
        self.stream = stream
        self._front = front

    def whole(self, message: memoryview) -> None:
        self._front.whole(self, message)

    def sink(self, nbytes: int, compressed: bool) -> MessageSink:
        return self._front.sink(self, nbytes, compressed)

    def received(self, request: InferRequest) -> None:
        """A message came, and is a request."""
        raise NotImplementedError

    def refused(self, error: ServeError) -> None:
        """A message came, and is no request."""
        raise NotImplementedError

    def answered(
        self, request: InferRequest, parts: list[Buffer], nbytes: int, sent: OnSent
    ) -> None:
        """A response; ``sent`` must be called once, when its bytes are no longer needed."""
        raise NotImplementedError

    def responded(
        self, request: InferRequest, parts: list[Buffer], nbytes: int, sent: OnSent, final: bool
    ) -> None:
        """One of several responses, as ``answered``; a ``streaming`` call has them."""
        raise NotImplementedError

    def passed(self, message: memoryview, sent: OnSent) -> None:
        """One of several responses as a node made it, for a ``streaming`` call; as ``answered``."""
        raise NotImplementedError

    def completed(self, request: InferRequest) -> None:
        """The responses that came were all."""
        raise NotImplementedError

    def failed(
        self, request: InferRequest, status: GrpcStatus, text: str, retry_after_ms: float | None
    ) -> None:
        """There is no response, or no further one."""
        raise NotImplementedError


class ModelInferCall(InferCall):
    """One request, one response."""

    __slots__ = ("_request",)
    endpoint = "ModelInfer RPC"

    def __init__(self, stream: GrpcStream, front: CallFront) -> None:
        super().__init__(stream, front)
        self._request: InferRequest | None = None

    def received(self, request: InferRequest) -> None:
        if self._request is None:
            self._request = request
            return
        request.cancel()
        self.gone()
        text = "ModelInfer takes one message, got more"
        self.stream.fail(GrpcStatus.INVALID_ARGUMENT, text)

    def refused(self, error: ServeError) -> None:
        self.gone()
        self.stream.refuse(error)

    def end(self) -> None:
        if self._request is not None:
            self._request.start()
        else:
            text = "ModelInfer takes one message, got none"
            self.stream.fail(GrpcStatus.INVALID_ARGUMENT, text)

    def gone(self) -> None:
        request, self._request = self._request, None
        if request is not None:
            request.cancel()

    def answered(
        self, request: InferRequest, parts: list[Buffer], nbytes: int, sent: OnSent
    ) -> None:
        self._request = None  # they know each other no longer
        self.stream.answer(parts, nbytes, sent)

    def failed(
        self, request: InferRequest, status: GrpcStatus, text: str, retry_after_ms: float | None
    ) -> None:
        self._request = None
        self.stream.fail(status, text, retry_after_ms)


class ModelStreamInferCall(InferCall):
    """Requests as they come, responses as they are ready; a refusal is a response too, unless the
    client asked for gRPC's own way (metadata ``triton_grpc_error: true``)."""

    __slots__ = ("_ended", "_forget", "_requests")
    endpoint = "ModelStreamInfer RPC"
    streaming = True

    def __init__(
        self,
        stream: GrpcStream,
        front: CallFront,
        forget: Callable[[ModelStreamInferCall], None],
    ) -> None:
        """``forget`` is called once, when the stream has ended."""
        super().__init__(stream, front)
        self._forget = forget
        self._requests: set[InferRequest] = set()
        self._ended = False

    def received(self, request: InferRequest) -> None:
        if len(self._requests) >= _STREAM_IN_FLIGHT:
            request.cancel()
            text = f"{len(self._requests)} requests of this stream are in flight"
            self._refuse(request.id, GrpcStatus.RESOURCE_EXHAUSTED, text, 100.0)
            return
        self._requests.add(request)
        request.start()

    def refused(self, error: ServeError) -> None:
        self._refuse("", GRPC_STATUS[error.reason], error.detail, error.retry_after_ms)

    def end(self) -> None:
        self._ended = True
        self._finish()

    def close(self) -> None:
        """The server is going: finish what is in flight, take nothing more."""
        self._ended = True
        if not self._requests:
            self.stream.fail(GrpcStatus.UNAVAILABLE, "the server is shutting down")
            self._forget(self)

    def gone(self) -> None:
        self._forget(self)
        requests, self._requests = self._requests, set()
        for request in requests:
            request.cancel()

    def answered(
        self, request: InferRequest, parts: list[Buffer], nbytes: int, sent: OnSent
    ) -> None:
        self._requests.discard(request)
        parts.append(FINAL_RESPONSE)  # fields may come in any order
        self.stream.message(*stream_response(parts, nbytes + len(FINAL_RESPONSE)), sent)
        self._finish()

    def responded(
        self, request: InferRequest, parts: list[Buffer], nbytes: int, sent: OnSent, final: bool
    ) -> None:
        parts.append(FINAL_RESPONSE if final else MORE_RESPONSES)
        message, size = stream_response(parts, nbytes + len(FINAL_RESPONSE))
        self.stream.message(message, size, sent, paced=True)
        if final:
            self.completed(request)

    def passed(self, message: memoryview, sent: OnSent) -> None:
        self.stream.message([message], len(message), sent, paced=True)

    def completed(self, request: InferRequest) -> None:
        self._requests.discard(request)
        self._finish()

    def failed(
        self, request: InferRequest, status: GrpcStatus, text: str, retry_after_ms: float | None
    ) -> None:
        self._requests.discard(request)
        self._refuse(request.id, status, text, retry_after_ms)

    def _refuse(self, id: str, status: GrpcStatus, text: str, retry_after_ms: float | None) -> None:
        if self.stream.head.status_errors:
            self.stream.fail(status, text, retry_after_ms)
            self.gone()
            return
        message = stream_error(text, id)
        self.stream.message([message], len(message))
        self._finish()

    def _finish(self) -> None:
        if self._ended and not self._requests:
            self.stream.finish(TRAILERS_OK)
            self._forget(self)


class LocalInference:
    """Inference by this server's own data plane."""

    def __init__(self, context: InferenceContext, limits: GrpcLimits) -> None:
        self.context = context
        self.limits = limits
        self.heap = HeapBudget(limits.max_heap_bytes)
        self.decoder = InferDecoder(context, limits, self.heap)
        self.responses = ResponseEncoder(context)

    @property
    def count(self) -> int:
        """Requests without an answer, of every transport."""
        return self.context.plane.in_flight

    def whole(self, call: InferCall, message: memoryview) -> None:
        found: DecodedInfer | UnreadInfer | ServeError
        try:
            found = self.decoder.whole(message)
        except ServeError as error:
            found = error
        self._taken(call, found)

    def sink(self, call: InferCall, nbytes: int, compressed: bool) -> MessageSink:
        if not compressed:
            return InferSink(self.decoder, nbytes, partial(self._taken, call))
        most_bytes, whole = self.limits.max_unpacked_bytes, partial(self.whole, call)
        return BufferedSink(most_bytes, self.heap, whole, call.refused, call.stream)

    def _taken(self, call: InferCall, found: DecodedInfer | UnreadInfer | ServeError) -> None:
        """A message came whole; one of a long head is read first, and its stream waits for it."""
        if isinstance(found, DecodedInfer):
            call.received(LocalRequest(self, call, found))
        elif isinstance(found, ServeError):
            call.refused(found)
        else:
            stream = call.stream
            stream.hold()
            task = asyncio.get_running_loop().create_task(self._read(call, found))
            stream.unpacking.add(task)
            task.add_done_callback(stream.unpacking.discard)

    async def _read(self, call: InferCall, unread: UnreadInfer) -> None:
        found = await self.decoder.read(unread)
        if call.stream.call is not None:
            self._taken(call, found)
            call.stream.go_on()
        elif isinstance(found, DecodedInfer):
            found.blocks.free()


class LocalRequest(Inference):
    """One inference between its message and its response."""

    __slots__ = ("_call", "_decoded", "_responses", "id")

    def __init__(self, front: LocalInference, call: InferCall, decoded: DecodedInfer) -> None:
        super().__init__(front.context, decoded.blocks)
        self._call = call
        self._responses = front.responses
        self._decoded = decoded
        self.id = decoded.id

    def start(self) -> None:
        decoded, head = self._decoded, self._call.stream.head
        request = decoded.request
        call = InferenceCall(
            request.model,
            request.version,
            decoded.id,
            decoded.inputs,
            request,
            head.budget_ms,
            head.elapsed_ms,
            head.trace,
            endpoint=self._call.endpoint,
        )
        self.ask(call, self._call.streaming)

    def cancel(self) -> None:
        self.abandon()
        if self._request is None:  # not started
            self.release()

    def send(self, response_: PartialResponse, model: str) -> None:
        asked, release, final = self._decoded.request, response_.release, response_.final
        empty = not (response_.outputs or response_.parameters)
        if empty and final and not asked.parameters.get(_EMPTY_FINAL):
            release()
            self._call.completed(self)
            return
        head, outputs = self._responses.encode(asked, model, response_.outputs)
        head += response_parameters(response_.parameters)
        self._call.responded(self, *response(head, self.id, outputs), release, final)

    def answer(self, reply: Reply) -> None:
        model, outputs = reply.request.model, reply.outputs
        head, views = self._responses.encode(self._decoded.request, model, outputs)
        if reply.stages:
            more = ModelInferResponse()
            more.parameters["server-timing"].string_param = server_timing(reply.stages)
            head += more.SerializeToString()
        head += response_parameters(reply.parameters)
        self._call.answered(self, *response(head, self.id, views), self.release)

    def fail(self, error: ServeError) -> None:
        status = GRPC_STATUS[error.reason]
        self._call.failed(self, status, error.detail, error.retry_after_ms)


_HEADS: Final = 1024
#: Of an output that lies in client shared memory: its position, region, offset and size.
StoredOutputs = tuple[tuple[int, str, int, int], ...]


class ResponseEncoder:
    """Replies as ModelInferResponse messages: a head made once, the bytes of outputs in place."""

    def __init__(self, context: InferenceContext) -> None:
        self._view = context.view
        self._regions = context.regions
        self._table = context.table
        self._heads: GenerationalCache[object, bytes] = GenerationalCache(_HEADS)

    def encode(
        self, request: DecodedRequest, model: str, outputs: tuple[Tensor, ...]
    ) -> tuple[bytes, list[Buffer]]:
        """The head and the outputs of a response; ``model`` is its deployment key.

        Raises:
            ServeError: an output is missing, cannot be ranked, or does not fit its region.
            ValueError: the outputs are gone: the process that held them has ended.
        """
        if request.targets and outputs:
            outputs = tuple([outputs[i] for i in output_order(request.targets, outputs)])
        view = self._view
        views: list[Buffer] = [view(tensor.span) for tensor in outputs]
        stored: StoredOutputs = ()
        if not request.direct and outputs:
            outputs, stored = self._converted(request, outputs, views)
        key = (model, stored, *[(t.name, t.datatype, t.shape) for t in outputs])
        head = self._heads.get(key)
        if head is None:
            head = _head(model, outputs, stored)
            self._heads.put(key, head)
        return head, views

    def _converted(
        self, request: DecodedRequest, outputs: Sequence[Tensor], views: list[Buffer]
    ) -> tuple[tuple[Tensor, ...], StoredOutputs]:
        """Rank the outputs that are wanted as classes, and write those to regions that belong
        there; ``views`` are what is left to be sent."""
        shown, stored = list(outputs), []
        for position, target in enumerate(request.targets):
            tensor, view = outputs[position], views[position]
            if target.classes:
                model = self._table.resolve(request.model, request.version).model
                shape, view = classified(model, tensor, memoryview(view), target.classes)
                shown[position] = Tensor(tensor.name, BYTES, shape, Span(tensor.span.arena, 0, 0))
            if target.region is not None:
                name, offset, _ = target.region
                self._regions.store(tensor.name, *target.region, view)
                stored.append((position, name, offset, len(view)))
                view = b""
            views[position] = view
        return tuple(shown), tuple(stored)


def _head(model: str, outputs: Sequence[Tensor], stored: StoredOutputs) -> bytes:
    key = DeploymentKey.parse(model)
    message = ModelInferResponse(model_name=key.name, model_version=str(key.version))
    for tensor in outputs:
        message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    for position, region, offset, nbytes in stored:
        parameters = message.outputs[position].parameters
        parameters["shared_memory_region"].string_param = region
        parameters["shared_memory_byte_size"].int64_param = nbytes
        if offset:
            parameters["shared_memory_offset"].int64_param = offset
    data: bytes = message.SerializeToString()
    return data
