"""Inference calls that the data plane has: each answered once, its memory given back once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from interlace.core.errors import Reason, ServeError
from interlace.core.request import Reply, Request
from interlace.server.dataplane.call import InferenceCall, OnError, OnReply
from interlace.server.dataplane.plane import failure
from interlace.server.grpc.frame_writer import Buffer, OnSent
from interlace.server.grpc.headers import CallHead
from interlace.server.grpc.infer_decoder import DecodedInfer, InferDecoder
from interlace.server.grpc.infer_response import ResponseEncoder


class InferencePlane(Protocol):
    """What gRPC needs of the data plane."""

    def infer(
        self,
        call: InferenceCall,
        on_reply: OnReply,
        on_error: OnError,
        on_give_up: OnError | None = None,
    ) -> Request | None: ...
    def cancel(self, request: Request) -> None: ...
    def delivered(self, reply: Reply) -> None: ...


class CallOwner(Protocol):
    """Waits for the answer of a call; exactly one of the two is called, unless it cancels."""

    def answered(
        self, pending: PendingCall, head: bytes, outputs: Sequence[Buffer], sent: OnSent
    ) -> None:
        """The head of the response and the bytes of its outputs; ``sent`` must be called once,
        when these are no longer needed."""

    def refused(self, pending: PendingCall, error: ServeError) -> None:
        """There is no result."""


class PendingCalls:
    """Everything that waits for the data plane, over all connections."""

    def __init__(
        self, plane: InferencePlane, decoder: InferDecoder, responses: ResponseEncoder
    ) -> None:
        self.plane = plane
        self.decoder = decoder
        self.responses = responses
        self.count = 0  #: calls without an answer

    def submit(self, owner: CallOwner, decoded: DecodedInfer, caller: CallHead) -> PendingCall:
        """Hand a request to the data plane; the arena blocks of ``decoded`` belong to the call.

        The owner may be answered or refused before this returns.
        """
        template = decoded.template
        head = template.head
        pending = PendingCall(self, owner, decoded)
        call = InferenceCall(
            head.model,
            head.version,
            decoded.id,
            decoded.inputs,
            template.outputs,
            head.parameters,
            caller.budget_ms,
            template.checks,
            caller.elapsed_ms,
        )
        self.count += 1
        pending.request = self.plane.infer(call, pending.replied, pending.refused, pending.gave_up)
        return pending


class PendingCall:
    """One call. ``owner`` is ``None`` once it has its answer, or none is wanted."""

    __slots__ = ("_calls", "_reply", "decoded", "owner", "request")

    def __init__(self, calls: PendingCalls, owner: CallOwner, decoded: DecodedInfer) -> None:
        self._calls = calls
        self._reply: Reply | None = None
        self.owner: CallOwner | None = owner
        self.decoded = decoded
        self.request: Request | None = None

    def cancel(self) -> None:
        """No answer is wanted any more; the memory comes back with the reply."""
        if self.owner is not None:
            self.owner = None
            if self.request is not None:
                self._calls.plane.cancel(self.request)

    def replied(self, reply: Reply) -> None:
        """The data plane's answer."""
        calls = self._calls
        calls.count -= 1
        owner, self.owner = self.owner, None
        self._reply = reply
        error = failure(reply)
        if owner is not None and error is None:
            try:
                head, outputs = calls.responses.encode(self.decoded.template, reply)
            except ServeError as fault:
                error = fault
            except ValueError as fault:
                error = ServeError(Reason.BACKEND, f"the outputs are gone: {fault}")
            else:
                owner.answered(self, head, outputs, self.sent)
                return
        self.sent()
        if owner is not None and error is not None:
            owner.refused(self, error)

    def refused(self, error: ServeError) -> None:
        """The data plane did not take the call."""
        calls = self._calls
        calls.count -= 1
        self.decoded.blocks.free()
        owner, self.owner = self.owner, None
        if owner is not None:
            owner.refused(self, error)

    def gave_up(self, error: ServeError) -> None:
        """There will be no outputs, but the device still reads the inputs: memory stays."""
        owner, self.owner = self.owner, None
        if owner is not None:
            owner.refused(self, error)

    def sent(self) -> None:
        """The bytes of inputs and outputs are no longer needed."""
        reply, self._reply = self._reply, None
        self.decoded.blocks.free()
        if reply is not None:
            self._calls.plane.delivered(reply)
