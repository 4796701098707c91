"""One request and its response, as connections and the handlers of requests see each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, IntEnum
from typing import Protocol

from interlace.core.errors import ServeError
from interlace.server.errors import HttpError
from interlace.server.http.bodies import ArenaBody
from interlace.server.http.request_head import RequestHead
from interlace.server.limits import HeapBudget
from interlace.shm.arena import Arena


class Phase(IntEnum):
    """What a connection waits for."""

    HEAD = 0  #: the rest of a request's head, or its first byte
    BODY = 1  #: the rest of its body
    WAIT = 2  #: the answer
    SEND = 3  #: the client to take its response
    LINGER = 4  #: the client to read its refusal and close


class ConnectionAdmission(Enum):
    """What a new connection may do."""

    FREE = "free"  #: everything
    PROBES = "probes"  #: ask after the server's health
    NONE = "none"  #: read that the server is full


class ResponseWriter(Protocol):
    """A connection, to the handler of its request: all but ``stream`` end the exchange."""

    def stream(self, piece: bytes, taken: Callable[[], None]) -> None:
        """Send a piece of a response that goes on, at first its head; ``respond`` sends the last.

        ``taken`` is called once there is room for the next piece, which must wait for that.
        """

    def respond(self, response: bytes) -> None:
        """Send a whole response."""

    def respond_parts(
        self, start: bytes, parts: Sequence[bytes | memoryview], release: Callable[[], None]
    ) -> None:
        """Send a response without copying it; ``release`` is called when its bytes have gone."""

    def fail(self, error: ServeError | HttpError) -> None:
        """Send a refusal."""


class Exchange(Protocol):
    """A request between its body and its response."""

    def abandon(self) -> None:
        """The client is gone: no response is wanted any more."""


class RequestHandler(Protocol):
    """Answers one kind of request.

    An ``ArenaBody`` is the handler's to free. ``begin`` returns ``None`` if the exchange has ended
    already.
    """

    def begin(
        self, writer: ResponseWriter, head: RequestHead, body: ArenaBody | bytearray
    ) -> Exchange | None: ...


class InferenceFront(RequestHandler, Protocol):
    """What answers the inference routes of a server. ``arena`` is where it places bodies."""

    @property
    def budget(self) -> HeapBudget: ...  #: of bodies that are not placed
    @property
    def arena(self) -> Arena: ...
    @property
    def whole_bytes(self) -> int: ...  #: a smaller body that is here whole needs no place
    def place(self, head: RequestHead, data: bytearray, start: int, end: int) -> ArenaBody:
        """Where a body is received straight into the arena; ``data[start:end]`` is here already.

        Raises:
            ServeError: the arena is full, no request of the model is as large, or it is known that
                the model has no time for it now.
        """

    def close(self) -> None:
        """Give up what it holds; nothing is under way any more."""
