"""The HTTP/2 connection to one node: many calls at once, each one message there, some back."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from functools import partial
from typing import Final

from interlace.core.errors import Reason, ServeError
from interlace.core.node import Node
from interlace.router.grpc.node_call import CallTaker, NodeCall
from interlace.router.grpc.passed_calls import CallEnd, CallHeads, call_end
from interlace.server.errors import GrpcStatus
from interlace.server.grpc import http2_frames as h2
from interlace.server.grpc.frame_writer import FrameWriter
from interlace.server.grpc.headers import HeaderBlocks
from interlace.server.grpc.http2_frames import PREFIX
from interlace.server.limits import GrpcLimits, HeapBudget, HeapReservation, TokenBucket
from interlace.server.spans import TraceFields
from interlace.server.tls import FollowedContext, connect_tls

_CONNECT_S: Final = 0.3
_CONNECT_TLS_S: Final = 1.0  #: the node's own process answers a handshake
_READ_BYTES: Final = 256 << 10
_CALLS_MAX: Final = 1000  #: a node takes 1024 streams
_BACKLOG_BYTES: Final = 64 << 20
_HEADER_BYTES: Final = 16 << 10
_CREDIT_BYTES: Final = 1 << 29
#: Requests up to this size are joined into one piece.
_JOINED_BYTES: Final = 16_000
#: A node cuts off a peer that resets more than it allows: many clients share this connection. What
#: is not reset is answered by the node, for nobody.
_RESETS_PER_S: Final = GrpcLimits().resets_per_s / 4
_RESETS_BURST: Final = GrpcLimits().resets_per_s
_LAST_STREAM: Final = 1 << 30


class NodeChannel:
    """Calls of one node over one connection, which is opened when there is something to send."""

    def __init__(
        self, node: Node, key: str, budget: HeapBudget, tls: FollowedContext | None = None
    ) -> None:
        self._node = node
        self._tls = tls
        self._budget = budget
        self._heads = CallHeads(f"{node.host}:{node.grpc_port}", key)
        self._link: _Link | None = None

    @property
    def in_flight(self) -> int:
        """Calls that have no answer yet."""
        return 0 if self._link is None else len(self._link.all_calls)

    def call(
        self,
        path: str,
        message: memoryview,
        budget_ms: float | None,
        waited_ms: float,
        taker: CallTaker,
        trace: TraceFields = (),
        streams: bool = False,
    ) -> NodeCall:
        """Make a call below the span ``trace``: ``waited_ms`` old, ``budget_ms`` are left.

        It sends one message; if it ``streams``, any number of responses come back.

        Raises:
            ServeError: OVERLOADED, the node has as many calls as it takes.
        """
        link = self._link
        if link is None or not link.open:
            link = self._link = _Link(self._node, self._budget, self._tls)
        if len(link.calls) + len(link.waiting) >= _CALLS_MAX:
            raise ServeError(
                Reason.OVERLOADED,
                f"node {self._node.name!r} has {_CALLS_MAX} calls of this router",
                retry_after_ms=100.0,
            )
        call = NodeCall(link.cancel, taker, self._budget, streams)
        link.send(call, self._heads.block(path, budget_ms, waited_ms, trace, streams), message)
        return call

    def fail_all(self, why: str, hopeless: bool = False) -> None:
        """Give up every call and the connection, or the ``hopeless`` calls, if any waits on."""
        link = self._link
        if link is None:
            return
        takers = {call: call.taker for call in link.all_calls if call.taker is not None}
        waiting = {call for call, taker in takers.items() if hopeless and taker.waits()}
        if not waiting:
            link.end(why)
            return
        for call, taker in takers.items():
            if call not in waiting:
                call.cancel()
                taker.lost(why)

    def close(self) -> None:
        """Close the connection; nothing is in flight."""
        self.fail_all("the router ends")


class _Link:
    """One connection, from its making to its end."""

    def __init__(self, node: Node, budget: HeapBudget, tls: FollowedContext | None) -> None:
        self.open = True  #: takes calls
        self.calls: dict[int, NodeCall] = {}
        #: Heads and messages of calls for the end of this turn, or for the connection to be made.
        #: What its client resets by then costs the node nothing.
        self.waiting: dict[NodeCall, tuple[bytes, memoryview]] = {}
        self._loop = asyncio.get_running_loop()
        self._budget = budget
        self._sock: socket.socket | None = None
        self._writer: FrameWriter | None = None
        self._ends = HeaderBlocks(_HEADER_BYTES, call_end)
        self._rest = b""
        self._next = 1
        self._uncredited = 0
        self._resets = TokenBucket(_RESETS_BURST, _RESETS_PER_S)
        self._flushing = self._blocked = False
        self._takers: dict[int, Callable[[int, int, bytes], None]] = {
            h2.DATA: self._data,
            h2.HEADERS: self._headers,
            h2.RST_STREAM: self._reset,
            h2.SETTINGS: self._settings,
            h2.PING: self._ping,
            h2.GOAWAY: self._goaway,
            h2.WINDOW_UPDATE: self._window_update,
        }
        self._opening = self._loop.create_task(self._connect(node, tls))

    @property
    def all_calls(self) -> list[NodeCall]:
        """Those that are sent, and those that will be."""
        return [*self.calls.values(), *self.waiting]

    def send(self, call: NodeCall, head: bytes, message: memoryview) -> None:
        """Send a call at the end of this turn, or when there is a connection."""
        self.waiting[call] = head, message
        self._wake()

    def _send(self, writer: FrameWriter, call: NodeCall, head: bytes, message: memoryview) -> None:
        call.id, self._next = self._next, self._next + 2
        call.window = writer.first_window
        self.calls[call.id] = call
        if self._next >= _LAST_STREAM:
            self.open = False
        opening = h2.frame(h2.HEADERS, h2.END_HEADERS, call.id, head)
        prefix = PREFIX.pack(0, len(message))
        size = len(message) + len(prefix)
        if size <= min(_JOINED_BYTES, call.window, writer.window) and not writer.congested:
            writer.put(opening + h2.frame(h2.DATA, h2.END_STREAM, call.id, prefix + message))
            writer.window -= size
            return
        writer.put(opening)
        call.queue.extend((prefix, message))
        call.queued_bytes = size
        call.tail = b""  # ends the request as trailers without a field
        writer.offer(call)

    def cancel(self, call: NodeCall) -> None:
        """Tell the node that a call's answer is not wanted."""
        call.reserved.release()
        if self.waiting.pop(call, None) is not None:
            self._end_if_left()
        elif call.id in self.calls and self._writer is not None and self._resets.take():
            del self.calls[call.id]
            self._writer.drop(call)
            self._writer.put(h2.rst_stream(call.id, h2.CANCEL))
            self._end_if_left()

    def _end_if_left(self) -> None:
        """Close a connection that takes no calls and has none: its node may keep it open."""
        if not (self.open or self.calls or self.waiting) and self._sock is not None:
            self.end("it is ending")

    def end(self, why: str) -> None:
        """Close; calls that still wait are lost, with ``why``."""
        self.open = False
        self._opening.cancel()
        left = self.all_calls
        self.calls, self.waiting = {}, {}
        sock, self._sock = self._sock, None
        if sock is not None:
            self._loop.remove_reader(sock.fileno())
            self._loop.remove_writer(sock.fileno())
            sock.close()
        if self._writer is not None:
            self._writer.close()
        for call in left:
            call.reserved.release()
            taker, call.taker = call.taker, None
            if taker is not None:
                taker.lost(why)

    async def _connect(self, node: Node, tls: FollowedContext | None) -> None:
        patience_s = _CONNECT_S if tls is None else _CONNECT_TLS_S
        family = socket.AF_INET6 if ":" in node.host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            async with asyncio.timeout(patience_s):
                found = await self._loop.getaddrinfo(
                    node.host, node.grpc_port, type=socket.SOCK_STREAM, family=family
                )
                await self._loop.sock_connect(sock, found[0][4])
                if tls is not None:
                    sock = await connect_tls(sock, tls.now(), node.tls_name)
        except (TimeoutError, OSError) as error:
            sock.close()
            timed_out = isinstance(error, TimeoutError)
            text = f"within {patience_s * 1000:.0f} ms" if timed_out else str(error)
            self.end(f"no gRPC connection: {text}")
            return
        except asyncio.CancelledError:
            sock.close()
            raise
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._writer = FrameWriter(sock, _BACKLOG_BYTES, self._wake)
        self._writer.put(h2.PREFACE + h2.settings(0, _HEADER_BYTES))
        self._loop.add_reader(sock.fileno(), self._readable)

    def _wake(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        writer, sock = self._writer, self._sock
        if writer is None or sock is None:
            return
        waiting, self.waiting = self.waiting, {}
        self._flushing = True  # what is put now is written now
        for call, (head, message) in waiting.items():
            self._send(writer, call, head, message)
        self._flushing = False
        try:
            writer.flush()
        except OSError as error:
            self.end(f"the connection broke: {error.strerror}")
            return
        blocked = writer.backlog_bytes > 0
        if blocked != self._blocked:
            self._blocked = blocked
            if blocked:
                self._loop.add_writer(sock.fileno(), self._flush)
            else:
                self._loop.remove_writer(sock.fileno())

    def _readable(self) -> None:
        sock = self._sock
        if sock is None:
            return
        try:
            data = sock.recv(_READ_BYTES)
            if not data:
                self.end("it closed the connection")
                return
            self._take(data)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self.end(f"the connection broke: {error.strerror}")
        except (ValueError, struct.error, h2.PeerError) as error:
            self.end(f"it does not speak HTTP/2 as it should: {error}")

    def _take(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        at, size = 0, len(data)
        while size - at >= 9:
            high, low, kind, flags, number = h2.HEAD.unpack_from(data, at)
            stop = at + 9 + (high << 8 | low)
            if stop > size:
                break
            taker = self._takers.get(kind)
            if taker is not None:
                taker(flags, number & h2.MAX_WINDOW, data[at + 9 : stop])
            if self._sock is None:
                return
            at = stop
        self._rest = data[at:]

    def _data(self, flags: int, number: int, payload: bytes) -> None:
        writer = self._writer
        assert writer is not None
        self._uncredited += len(payload)
        if self._uncredited > _CREDIT_BYTES:
            writer.put(h2.window_update(0, self._uncredited))
            self._uncredited = 0
        call = self.calls.get(number)
        if call is None or (call.streams and call.taker is None):
            return  # without credit, a stream that nobody wants ends
        self._credit(call, len(payload))
        try:
            call.reserved.resize(len(call.data) + len(payload))
        except ServeError as error:
            self._refuse(
                call, CallEnd(GrpcStatus.RESOURCE_EXHAUSTED, error.detail, error.retry_after_ms)
            )
            writer.put(h2.rst_stream(number, h2.CANCEL))
            return
        call.data += payload
        if call.streams:
            self._respond(call)
        if flags & h2.END_STREAM and number in self.calls:
            self._refuse(call, CallEnd(text="it ended a call without a status"))

    def _credit(self, call: NodeCall, nbytes: int) -> None:
        """Let the node send more, once it has sent half of what it may."""
        call.received += nbytes
        if call.received > h2.STREAM_WINDOW // 2 and self._writer is not None:
            self._writer.put(h2.window_update(call.id, call.received))
            call.received = 0

    def _respond(self, call: NodeCall) -> None:
        """Pass on the responses that are whole. Their bytes are credited as their client reads."""
        data = call.data
        while call.taker is not None and len(data) >= PREFIX.size:
            flag, size = PREFIX.unpack_from(data)
            whole = PREFIX.size + size
            if flag:
                text = "the node's response is compressed"
                self._refuse(call, CallEnd(GrpcStatus.INTERNAL, text))
                return
            if len(data) < whole:
                return
            message = bytes(memoryview(data)[PREFIX.size : whole])
            del data[:whole]
            call.received -= whole
            call.reserved.resize(len(data))
            held = HeapReservation(self._budget)
            held.resize(size)
            call.taker.responded(memoryview(message), partial(self._sent, call, held, whole))

    def _sent(self, call: NodeCall, held: HeapReservation, nbytes: int) -> None:
        """The client of a call took a response."""
        held.release()
        if self.calls.get(call.id) is call:
            self._credit(call, nbytes)

    def _headers(self, flags: int, number: int, payload: bytes) -> None:
        if flags & (h2.PADDED | h2.PRIORITISED) or not flags & h2.END_HEADERS:
            raise ValueError("a header block in pieces")
        end = self._ends.read(payload)  # also of streams that are gone: its table has to follow
        call = self.calls.get(number)
        if call is None or not flags & h2.END_STREAM:
            return
        whole = not call.data if call.streams else _is_message(call.data)
        if not end.status and not whole and call.taker is not None:
            end = CallEnd(GrpcStatus.INTERNAL, "the node's response is not one plain message")
        if end.status:
            self._refuse(call, end)
            return
        del self.calls[number]
        taker, call.taker = call.taker, None
        if taker is not None and call.streams:
            call.reserved.release()
            taker.completed()
        elif taker is not None:
            taker.replied(memoryview(call.data)[PREFIX.size :], call.reserved)
        else:
            call.reserved.release()
        self._end_if_left()

    def _refuse(self, call: NodeCall, end: CallEnd) -> None:
        taker = self._forget(call)
        if taker is not None:
            taker.refused(end)
        self._end_if_left()

    def _reset(self, flags: int, number: int, payload: bytes) -> None:
        call = self.calls.get(number)
        if call is None or h2.word(payload, "RST_STREAM") == h2.NO_ERROR:
            return
        self._lose(call, f"it reset the call (code {h2.word(payload, 'RST_STREAM')})")

    def _lose(self, call: NodeCall, why: str) -> None:
        taker = self._forget(call)
        if taker is not None:
            taker.lost(why)
        self._end_if_left()

    def _forget(self, call: NodeCall) -> CallTaker | None:
        """Drop a call that has ended without a response; who is to be told, if anybody."""
        if self.waiting.pop(call, None) is None:
            del self.calls[call.id]
        call.reserved.release()
        if self._writer is not None:
            self._writer.drop(call)  # it may not have taken all of the request
        taker, call.taker = call.taker, None
        return taker

    def _settings(self, flags: int, number: int, payload: bytes) -> None:
        writer = self._writer
        if flags & h2.ACK or writer is None:
            return
        writer.follow(payload, self.calls.values())
        writer.opened()

    def _ping(self, flags: int, number: int, payload: bytes) -> None:
        if not flags & h2.ACK and self._writer is not None:
            self._writer.put(h2.frame(h2.PING, h2.ACK, 0, payload))

    def _goaway(self, flags: int, number: int, payload: bytes) -> None:
        self.open = False  # new calls go over a new connection
        last = int.from_bytes(payload[:4], "big") & h2.MAX_WINDOW
        for call in [call for call in self.all_calls if call.id > last or call in self.waiting]:
            self._lose(call, "it is ending")
        self._end_if_left()

    def _window_update(self, flags: int, number: int, payload: bytes) -> None:
        writer = self._writer
        assert writer is not None
        increment = h2.word(payload, "WINDOW_UPDATE") & h2.MAX_WINDOW
        if number == 0:
            writer.window += increment
        elif number in self.calls:
            self.calls[number].window += increment
        writer.opened()


def _is_message(data: bytearray) -> bool:
    """Return whether this is one whole message that is not compressed."""
    size = len(data) - PREFIX.size
    return size >= 0 and data.startswith(PREFIX.pack(0, size))
