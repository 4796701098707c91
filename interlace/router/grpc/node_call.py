"""One call of a node, and who made it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from interlace.router.grpc.passed_calls import CallEnd
from interlace.server.grpc.frame_writer import Buffer, OnSent
from interlace.server.limits import HeapBudget, HeapReservation


class CallTaker(Protocol):
    """Who made a call: exactly one of the first four is called, once."""

    def completed(self) -> None:
        """The responses of a call that streams were all."""
        ...

    def replied(self, message: memoryview, reserved: HeapReservation) -> None:
        """The response; ``reserved`` is the taker's to release."""
        ...

    def refused(self, end: CallEnd) -> None:
        """The node said no."""
        ...

    def lost(self, why: str) -> None:
        """There will be no answer."""
        ...

    def responded(self, message: memoryview, sent: OnSent) -> None:
        """A response of a call that streams; ``sent`` must be called once its client took it."""
        ...

    def waits(self) -> bool:
        """Whether it waits on for a node that is silent."""
        ...


class NodeCall:
    """One call (an ``OutgoingStream``). ``taker`` is ``None`` after the answer, or a cancel.

    One that ``streams`` has any number of responses.
    """

    __slots__ = ("_cancel", "data", "id", "queue", "queued_bytes", "received", "reserved",
                 "sent_bytes", "streams", "tail", "taker", "window")  # fmt: skip

    def __init__(
        self,
        cancel: Callable[[NodeCall], None],
        taker: CallTaker,
        budget: HeapBudget,
        streams: bool,
    ) -> None:
        self._cancel = cancel
        self.streams = streams
        self.taker: CallTaker | None = taker
        self.id = 0
        self.window = 0
        self.sent_bytes = 0
        self.queue: deque[Buffer | OnSent] = deque()
        self.queued_bytes = 0
        self.tail: bytes | None = None
        self.data = bytearray()
        self.received = 0  #: bytes since our last window update, but for those that clients owe
        self.reserved = HeapReservation(budget)

    def ended(self) -> None:
        """The last frame of the request is on its way."""

    def cancel(self) -> None:
        """No answer is wanted any more."""
        self.taker = None
        self._cancel(self)
