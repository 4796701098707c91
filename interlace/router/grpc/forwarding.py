"""ModelInfer and ModelStreamInfer, passed to one node after another until one answers."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import Final

from google.protobuf.message import DecodeError

from interlace.core.errors import ServeError, bad_input
from interlace.proto.messages import ModelInferRequest
from interlace.router.attempts import Forwarded
from interlace.router.directory import NodeDirectory, NodeLinks
from interlace.router.grpc.node_call import NodeCall
from interlace.router.grpc.passed_calls import CallEnd
from interlace.server.errors import GRPC_STATUS, GrpcStatus
from interlace.server.grpc.buffered_sink import BufferedSink
from interlace.server.grpc.frame_writer import OnSent
from interlace.server.grpc.infer_calls import InferCall
from interlace.server.grpc.infer_head import parameter_value
from interlace.server.grpc.infer_wire import addressee, scan
from interlace.server.grpc.service import MODEL_INFER, MODEL_STREAM_INFER
from interlace.server.grpc.stream import MessageSink
from interlace.server.limits import GrpcLimits, HeapBudget, HeapReservation

#: What a node says that another one may see otherwise.
_ELSEWHERE: Final = frozenset(
    (GrpcStatus.RESOURCE_EXHAUSTED, GrpcStatus.UNAVAILABLE, GrpcStatus.NOT_FOUND)
)


class CallForwarder:
    """Passes requests on as they are; what is not answered yet is held within ``heap``."""

    def __init__(self, directory: NodeDirectory, limits: GrpcLimits) -> None:
        self.directory = directory
        self.limits = limits
        self.heap = HeapBudget(limits.max_heap_bytes)
        self.count = 0  #: requests without an answer

    def whole(self, call: InferCall, message: memoryview) -> None:
        self._take(call, memoryview(bytes(message)))

    def sink(self, call: InferCall, nbytes: int, compressed: bool) -> MessageSink:
        limits, take = self.limits, partial(self._take, call)
        if compressed:
            most_bytes = limits.max_unpacked_bytes
            return BufferedSink(most_bytes, self.heap, take, call.refused, call.stream)
        return BufferedSink(limits.max_message_bytes, self.heap, take, call.refused)

    def _take(self, call: InferCall, message: memoryview) -> None:
        """Take a message that nobody changes any more."""
        try:
            request = ForwardedCall(self, call, message)
        except ServeError as error:
            call.refused(error)
        else:
            call.received(request)


class ForwardedCall(Forwarded):
    """One ModelInferRequest, and the node that has it now.

    A request of a stream is a stream of its own there: its model may be decoupled.
    """

    __slots__ = (
        "_begun",
        "_call",
        "_caller",
        "_forwarder",
        "_message",
        "_refusal",
        "_reserved",
        "_version",
    )

    def __init__(self, forwarder: CallForwarder, caller: InferCall, message: memoryview) -> None:
        """Hold a request; nothing is sent before ``start``.

        Raises:
            ServeError: there is no room for it.
        """
        super().__init__(forwarder.directory, len(message), caller.stream.head.trace)
        self._message = message
        self._forwarder = forwarder
        self._caller = caller
        self._call: NodeCall | None = None
        self._refusal: CallEnd | None = None
        self._begun = False  #: the client has a response: no other node is asked
        self._version = ""  #: of the model, if one was asked for
        self._reserved = HeapReservation(forwarder.heap)
        self._reserved.resize(len(message))

    @property
    def id(self) -> str:
        try:
            return scan(self._message)[1]
        except ServeError:
            return ""

    def start(self) -> None:
        """Send it to the node that is predicted to answer first."""
        self._forwarder.count += 1
        try:
            self.model, self._version = addressee(self._message)
            if self._directory.routes.stateful(self.model):
                self.sequence = _sequence(self._message)
        except ServeError as error:
            self.fail(error)
        else:
            self.ask_next()

    def cancel(self) -> None:
        """No answer is wanted any more."""
        if self._call is not None:
            self._call.cancel()
            self._done("the client is gone")
        else:  # not sent yet, or ended
            self.end("the client is gone")
            self._reserved.release()

    def replied(self, message: memoryview, reserved: HeapReservation) -> None:
        self._done()
        self._caller.answered(self, [message], len(message), reserved.release)
        if self.links is not None:
            self.links.answered()

    def responded(self, message: memoryview, sent: OnSent) -> None:
        self._begun = True
        self.unbounded()
        self._caller.passed(message, sent)

    def completed(self) -> None:
        self._done()
        self._caller.completed(self)
        if self.links is not None:
            self.links.answered()

    def refused(self, end: CallEnd) -> None:
        if self._begun or end.status not in _ELSEWHERE or end.retry_after_ms == inf:
            self._end(end)
            return
        if self._version or end.status != GrpcStatus.NOT_FOUND:
            # Else it has just unloaded the model: "not found" is not so.
            self._refusal, self.refused_before = end, True
        self.ask_next()

    def lost(self, why: str) -> None:
        if self._begun:
            self._end(CallEnd(GrpcStatus.UNAVAILABLE, f"the node did not go on: {why}"))
            return
        self.lose(why, asked_in_vain=True)

    def send(self, links: NodeLinks, waited_ms: float) -> None:
        head = self._caller.stream.head
        left_ms = None if head.budget_ms is None else head.budget_ms - waited_ms
        streams = self._caller.streaming
        path = MODEL_STREAM_INFER if streams else MODEL_INFER
        self._call = links.grpc.call(
            path, self._message, left_ms, waited_ms, self, self.trace, streams
        )

    def withdraw(self) -> None:
        if self._call is not None:
            self._call.cancel()

    def pass_refusal(self) -> None:
        assert self._refusal is not None
        self._end(self._refusal)

    def fail(self, error: ServeError) -> None:
        self._end(CallEnd(GRPC_STATUS[error.reason], error.detail, error.retry_after_ms))

    def _end(self, end: CallEnd) -> None:
        self._done(end.text)
        self._caller.failed(self, end.status, end.text, end.retry_after_ms)

    def _done(self, error: str = "") -> None:
        self._call = None
        self.end(error)
        self._reserved.release()
        self._forwarder.count -= 1


def _sequence(message: memoryview) -> str:
    """The id of the sequence that a request names; "" if there is none, which the node refuses.

    Raises:
        ServeError: BAD_INPUT, it is not a protobuf.
    """
    try:
        parameters = ModelInferRequest.FromString(scan(message)[0]).parameters
    except DecodeError as error:
        raise bad_input(f"malformed ModelInferRequest: {error}") from error
    if "sequence_id" not in parameters:
        return ""
    return str(parameter_value("sequence_id", parameters["sequence_id"]))
