"""HTTP/1.1 connections: requests in order, bodies straight to where they stay, bounded waits."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

from interlace.core.errors import Reason, ServeError
from interlace.server.api_keys import Access
from interlace.server.errors import HttpError
from interlace.server.http.bodies import SKIP_BYTES, ArenaBody, Body, SkippedBody, received_body
from interlace.server.http.exchange import (
    ConnectionAdmission,
    Exchange,
    InferenceFront,
    Phase,
    RequestHandler,
)
from interlace.server.http.request_head import CHUNKED, RequestHead, RequestHeadReader, head_end
from interlace.server.http.responses import CONTINUE, error_response, with_connection
from interlace.server.limits import HeapBudget, HttpLimits, RefusalBucket, RouteKind

#: How often all connections may be looked through.
LOOK_S: Final = 0.05
#: What one read takes while no body is expected; larger bodies then go straight to the arena.
SCRATCH_BYTES: Final = 64 * 1024


class ServerState:
    """Limits, memory, handlers and connections of one server.

    ``placer`` is ``None`` on a server that has no inference routes.
    """

    def __init__(
        self,
        reader: RequestHeadReader,
        handlers: Mapping[RouteKind, RequestHandler],
        placer: InferenceFront | None,
        limits: HttpLimits,
    ) -> None:
        self.read_head: Callable[[bytes], RequestHead] = reader.read
        self.handlers = handlers
        self.placer = placer
        self.whole_bytes = placer.whole_bytes if placer is not None else 0
        self.limits = limits
        self.loop = asyncio.get_running_loop()
        self.scratch = bytearray(SCRATCH_BYTES)
        self.scratch_view = memoryview(self.scratch)
        self.connections: set[HttpConnection] = set()
        self.draining = False
        self.budget = HeapBudget(limits.heap_bytes) if placer is None else placer.budget
        self.refusals = RefusalBucket()
        self._idle: list[tuple[float, HttpConnection]] = []  #: those found, the longest idle last
        self._looked_s = float("-inf")
        self._last_refusal: tuple[Exception | None, bytes] = (None, b"")

    def enter(self, connection: HttpConnection) -> ConnectionAdmission:
        """Count a connection in; at the limit the longest idle one is closed for it.

        Those above the limit may only probe, and those above that get a refusal to read.
        """
        limits, over = self.limits, len(self.connections) + 1 - self.limits.connections
        made_room = over > 0 and self._close_idle()
        self.connections.add(connection)
        if over <= 0 or made_room:
            return ConnectionAdmission.FREE
        if over <= limits.probes:
            return ConnectionAdmission.PROBES
        beyond = over - limits.probes
        if beyond > limits.connections // 4 and connection.transport is not None:
            connection.transport.abort()  # too many even for a refusal
        return ConnectionAdmission.NONE

    def _close_idle(self) -> bool:
        """Close the connection that has been idle longest; false if none is."""
        while True:
            while self._idle:
                since_s, connection = self._idle.pop()
                if connection.idle and connection.idle_since_s == since_s:
                    connection.drain()
                    return True
            now_s = self.loop.time()
            if now_s - self._looked_s < LOOK_S:
                return False
            self._looked_s = now_s
            found = [(each.idle_since_s, each) for each in self.connections if each.idle]
            self._idle = sorted(found, key=lambda entry: -entry[0])

    def crowded(self, handshakes: int) -> bool:
        """Whether there are too many of them: they count as connections, but have some places
        even where all connections are taken.
        """
        limit = self.limits.connections
        return handshakes >= max(limit - len(self.connections), limit // 8)

    def full(self) -> ServeError:
        """The refusal of one connection too many."""
        limit = self.limits.connections
        return ServeError(Reason.NOT_READY, f"{limit} connections are open already")

    def refusal_bytes(self, error: HttpError | ServeError) -> bytes:
        """A refusal as a response; the same one is often sent many times in a row."""
        if error is not self._last_refusal[0]:
            self._last_refusal = (error, error_response(error))
        return self._last_refusal[1]


# Found faster than attributes of an enum, and read very often.
_HEAD, _BODY, _WAIT, _SEND, _LINGER = Phase
#: More than a transport takes before it says that it is full.
_PIECE_BYTES: Final = 128 << 10


class HttpConnection(asyncio.BufferedProtocol):
    """Answers one request at a time; what a client sends ahead waits in a bounded backlog.

    Reads go into one scratch buffer, as each is used up before the next; only the body of an
    inference request is read into memory of its own.
    """

    __slots__ = (
        "_admission", "_backlog", "_body", "_close_after", "_exchange", "_feeding", "_head",
        "_paused", "_pieces", "_reading", "_release", "_state", "_streaming", "_target",
        "idle_since_s", "phase", "served", "transport",
    )  # fmt: skip

    def __init__(self, state: ServerState) -> None:
        self.transport: asyncio.Transport | None = None  #: ``None`` once it is lost
        self.phase: Phase = _HEAD
        self.served = 0  #: responses sent
        self.idle_since_s = state.loop.time()  #: when it began to wait for a request
        self._state = state
        self._target = state.scratch_view
        self._admission = ConnectionAdmission.NONE  # until it is connected
        self._backlog = bytearray()
        self._head: RequestHead | None = None
        self._body: Body | None = None
        self._exchange: Exchange | None = None
        self._release: Callable[[], None] | None = None
        self._pieces: deque[memoryview] | None = None  #: over TLS: of a response, not written yet
        self._paused = self._feeding = self._close_after = self._streaming = False
        self._reading = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport = cast("asyncio.Transport", transport)
        if transport.get_extra_info("sslcontext") is None:
            transport.set_write_buffer_limits(high=0)
        else:  # it is paused at its limit, not above it: at 0 that would be for ever
            transport.set_write_buffer_limits(high=1)
            self._pieces = deque()
        self._admission = self._state.enter(self)
        if self._admission is ConnectionAdmission.NONE:
            self.refuse(self._state.full())

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._target

    def buffer_updated(self, nbytes: int) -> None:
        state = self._state
        if self._target is not state.scratch_view:
            self._received_placed(nbytes)
        elif self._backlog:
            self._backlog += state.scratch_view[:nbytes]
            self._feed_backlog()
        else:
            used = self._feed(state.scratch, nbytes)
            if used < nbytes:
                self._keep(state.scratch_view[used:nbytes])

    def eof_received(self) -> bool:
        return False  # who stops sending is gone; a response under way is still flushed

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._state.connections.discard(self)
        self._drop_body()
        if self._pieces:
            self._pieces.clear()
        if self._exchange is not None:
            self._exchange.abandon()
        if self._release is not None:
            self._release()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._pieces:
            self._write_pieces(self._pieces)
        if self.phase is _SEND and self._streaming:
            self.phase = _WAIT
            taken, self._release = self._release, None
            if taken is not None:
                taken()
        elif self.phase is _SEND:
            self._next_or_wait()

    def respond(self, response: bytes) -> None:
        if self.transport is not None:
            self._exchange = None
            self.transport.write(response if self._streaming else self._with_connection(response))
            self._streaming = False
            self._next_or_wait()

    def stream(self, piece: bytes, taken: Callable[[], None]) -> None:
        if self.transport is None:
            taken()
            return
        self.transport.write(piece if self._streaming else self._with_connection(piece))
        self._streaming = True
        if self._paused:
            self.phase, self._release = _SEND, taken
        else:
            taken()

    def respond_parts(
        self, start: bytes, parts: Sequence[bytes | memoryview], release: Callable[[], None]
    ) -> None:
        if self.transport is None:
            release()
            return
        self._exchange = None
        self._release = release
        if self._pieces is None:
            self.transport.writelines((self._with_connection(start), *parts))
        else:
            for part in (self._with_connection(start), *parts):
                whole = memoryview(part).cast("B")
                steps = range(0, len(whole), _PIECE_BYTES)
                self._pieces.extend(whole[at : at + _PIECE_BYTES] for at in steps)
            self._write_pieces(self._pieces)
        self._next_or_wait()

    def fail(self, error: ServeError | HttpError) -> None:
        self.respond(self._state.refusal_bytes(error))
        rest_s, transport = self._state.refusals.rest_s(), self.transport
        if rest_s and self.phase is _HEAD and self._reading and transport is not None:
            self._reading = False
            transport.pause_reading()
            self._state.loop.call_later(rest_s, self._read_again)

    def _read_again(self) -> None:
        if self.transport is not None and self.phase is _HEAD and not self._reading:
            self._reading = True
            self.transport.resume_reading()

    @property
    def progress(self) -> int:
        """A number that changes while the client does its part."""
        if self.phase is _SEND and self.transport is not None:
            left = len(self._pieces) * _PIECE_BYTES if self._pieces else 0
            return -left - self.transport.get_write_buffer_size()
        return self._body.received if self._body is not None else len(self._backlog)

    @property
    def idle(self) -> bool:
        """Whether it waits for a request, and no byte of one has arrived."""
        return self.phase is _HEAD and not self._backlog and self.transport is not None

    def drain(self) -> None:
        """Close if nothing is owed to the client."""
        if self.transport is not None and self.phase is _HEAD:
            self._state.connections.discard(self)
            self.transport.close()

    def refuse(self, error: HttpError | ServeError) -> None:
        """Send a refusal and close, once the client had the time to read it."""
        self._drop_body()
        if self.transport is None or self.phase is _LINGER:
            return
        self._backlog = bytearray()
        self.phase = _LINGER
        self.transport.write(with_connection(error_response(error), keep_alive=False))
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()

    def _feed(self, data: bytearray, end: int) -> int:
        """Use up ``data[:end]`` as far as possible; how far that was."""
        start = 0
        self._feeding = True
        try:
            while start < end and self.phase <= _BODY:
                step = self._take_head if self.phase is _HEAD else self._take_body
                after = step(data, start, end)
                if after == start:
                    break
                start = after
        except (HttpError, ServeError) as error:
            self.refuse(error)
        finally:
            self._feeding = False
        return end if self.phase is _LINGER else start

    def _feed_backlog(self) -> None:
        data, self._backlog = self._backlog, bytearray()
        used = self._feed(data, len(data))
        if used < len(data):
            self._keep(memoryview(data)[used:])

    def _keep(self, data: memoryview) -> None:
        self._backlog += data
        if len(self._backlog) > self._state.limits.head_bytes and self.transport is not None:
            self._reading = False
            self.transport.pause_reading()

    def _take_head(self, data: bytearray, start: int, end: int) -> int:
        if data[start] in b"\r\n":
            return start + 1  # an empty line before a request is passed over (RFC 9112, 2.2)
        stop = head_end(data, start, end, self._state.limits.head_bytes)
        if stop < 0:
            return start
        head = self._head = self._state.read_head(bytes(memoryview(data)[start:stop]))
        if self._admission is ConnectionAdmission.PROBES and head.route.access is not Access.PROBE:
            raise self._state.full()
        if head.refusal is not None:
            self._refuse_body(head.refusal, head, end - stop)
            return stop
        if head.placed:
            return self._take_placed(head, data, stop, end)
        self._body = received_body(head, self._state.limits, self._state.budget)
        self._expect(head, stop == end)
        return stop

    def _take_placed(self, head: RequestHead, data: bytearray, start: int, end: int) -> int:
        placer, after = self._state.placer, start + head.length
        assert placer is not None, "there are inference routes"
        if head.length < self._state.whole_bytes and after <= end:
            self._begin(head, data[start:after])
            return after
        try:
            body = placer.place(head, data, start, end)
        except ServeError as error:
            self._refuse_body(error, head, end - start)
            return start
        if after > end:
            self._body = body
            self._expect(head, start == end)
            return start
        body.take(data, start, after)  # all here already: the usual small request
        self._begin(head, body)
        return after

    def _expect(self, head: RequestHead, nothing_yet: bool) -> None:
        self.phase = _BODY
        if self._body is not None and self._body.done:
            self._whole()
        elif head.expects and nothing_yet and self.transport is not None:
            self.transport.write(CONTINUE)

    def _take_body(self, data: bytearray, start: int, end: int) -> int:
        body = self._body
        assert body is not None
        after = body.take(data, start, end)
        if body.done:
            self._whole()
        elif isinstance(body, ArenaBody):
            self._target = body.rest  # from now on, received straight there
        return after

    def _received_placed(self, nbytes: int) -> None:
        body = self._body
        assert isinstance(body, ArenaBody)
        try:
            body.landed(nbytes)
        except ServeError as error:
            self.refuse(error)
            return
        self._target = body.rest
        if not body.rest:
            self._target = self._state.scratch_view
            self._whole()

    def _whole(self) -> None:
        """The body that was waited for is here."""
        head, body = self._head, self._body
        assert head is not None and body is not None
        if isinstance(body, ArenaBody):
            self._body = None  # the handler's now
            self._begin(head, body)
        elif isinstance(body, SkippedBody):
            self.phase = _WAIT
            self.fail(body.error)
        else:
            self._begin(head, body.data)

    def _begin(self, head: RequestHead, body: ArenaBody | bytearray) -> None:
        """Hand a whole request to its handler."""
        self.phase = _WAIT
        served = self.served
        exchange = self._state.handlers[head.route.kind].begin(self, head, body)
        if self.served == served:  # not answered yet
            self._exchange = exchange

    def _refuse_body(
        self, error: HttpError | ServeError, head: RequestHead, available: int
    ) -> None:
        """Refuse a request whose body is still to come."""
        left = head.length - available
        if not head.length:
            self.fail(error)
        elif head.length == CHUNKED or left > SKIP_BYTES or (head.expects and left > 0):
            self.refuse(error)
        else:
            self._body = SkippedBody(head.length, error)
            self.phase = _BODY

    def _with_connection(self, start: bytes) -> bytes:
        head = self._head
        assert head is not None
        if head.plain and not self._state.draining:
            return start
        self._close_after = not head.keep_alive or self._state.draining
        return with_connection(start, not self._close_after)

    def _next_or_wait(self) -> None:
        """Go on to the next request, as soon as the client has taken the response."""
        if self._paused:
            self.phase = _SEND
            return
        self.served += 1
        self.phase = _HEAD
        self.idle_since_s = self._state.loop.time()
        release, self._release = self._release, None
        if release is not None:
            release()
        self._drop_body()
        if self.transport is None:
            return
        if self._close_after:
            self.phase = _LINGER
            self.transport.close()
            return
        self._read_again()
        if self._backlog and not self._feeding:
            self._feed_backlog()

    def _write_pieces(self, pieces: deque[memoryview]) -> None:
        """Encrypt as much as is read meanwhile: TLS copies what it is given, however much."""
        while pieces and not self._paused and self.transport is not None:
            self.transport.write(pieces.popleft())

    def _drop_body(self) -> None:
        self._target = self._state.scratch_view
        if self._body is not None:
            body, self._body = self._body, None
            body.drop()
