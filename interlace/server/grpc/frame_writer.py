"""The sending half of an HTTP/2 connection: frames in order, within the peer's windows."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final, Protocol

from interlace.server.grpc.http2_frames import (
    ACK,
    DATA,
    DEFAULT_FRAME,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    HEAD,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    MAX_WINDOW,
    SETTINGS,
    PeerError,
    frame,
    read_settings,
)

Buffer = bytes | memoryview
#: Called once the bytes that were handed over with it are no longer needed.
OnSent = Callable[[], None]
_VECTOR: Final = 256


class OutgoingStream(Protocol):
    """A stream with bytes to send: pieces, and a ``OnSent`` after the last piece of a message."""

    id: int
    window: int
    sent_bytes: int
    queue: deque[Buffer | OnSent]
    queued_bytes: int
    tail: bytes | None

    def ended(self) -> None:
        """The last frame of the stream is on its way."""


class FrameWriter:
    """The sending half of a connection. Windows and ``max_frame`` are the peer's.

    ``wake`` is called when there is something to flush where there was nothing.
    """

    def __init__(
        self, sock: socket.socket, max_backlog_bytes: int, wake: Callable[[], None]
    ) -> None:
        self.window = DEFAULT_WINDOW
        self.max_frame = DEFAULT_FRAME
        self.first_window = DEFAULT_WINDOW  #: of a new stream
        self.backlog_bytes = 0
        self.sent_bytes = 0
        self.data_frames = 0  #: made so far
        self.refused = 0  #: calls, until somebody sets it back
        self._sock = sock
        self._wake = wake
        self._max_backlog_bytes = max_backlog_bytes
        self._out: deque[Buffer] = deque()
        self._marks: deque[tuple[int, OnSent]] = deque()
        self._waiting: dict[int, OutgoingStream] = {}

    @property
    def congested(self) -> bool:
        """Whether the peer is not taking what it asked for: time to read no more from it."""
        return self.backlog_bytes >= self._max_backlog_bytes

    @property
    def idle(self) -> bool:
        return not self._out and not self._waiting

    def put(self, data: bytes) -> None:
        """Send whole frames that no window governs (or that were charged to it)."""
        if not self._out:
            self._wake()
        self._out.append(data)
        self.backlog_bytes += len(data)

    def follow(self, settings: bytes, streams: Iterable[OutgoingStream]) -> None:
        """Take up and acknowledge the peer's SETTINGS; ``streams`` are all that are open.

        Raises:
            PeerError: they are malformed, or a window is too large then.
        """
        for key, value in read_settings(settings):
            if key == MAX_FRAME_SIZE:
                self.max_frame = value
            elif key == INITIAL_WINDOW_SIZE:
                for stream in streams:
                    stream.window += value - self.first_window
                    if stream.window > MAX_WINDOW:
                        raise PeerError(FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE")
                self.first_window = value
        self.put(frame(SETTINGS, ACK, 0))

    def offer(self, stream: OutgoingStream) -> None:
        """Send what the stream has queued, as far as the windows go; the rest when they open."""
        if self._pump(stream):
            self._waiting.pop(stream.id, None)
        else:
            self._waiting[stream.id] = stream

    def opened(self) -> None:
        """The connection's window grew, or the socket took bytes: send more of what waits."""
        for stream in list(self._waiting.values()):
            if self.window <= 0 or self.congested:
                return
            del self._waiting[stream.id]  # to the end of the line
            self.offer(stream)

    def drop(self, stream: OutgoingStream) -> None:
        """Forget what the stream had queued: it was reset."""
        self._waiting.pop(stream.id, None)
        queue, stream.queue = stream.queue, deque()
        stream.queued_bytes, stream.tail = 0, None
        for piece in queue:
            if callable(piece):
                self._marks.append((self.sent_bytes + self.backlog_bytes, piece))
        self._settle()

    def flush(self) -> None:
        """Give the socket what it takes.

        Raises:
            OSError: the connection broke.
        """
        while self._out:
            try:
                sent = self._sock.sendmsg(list(islice(self._out, _VECTOR)))
            except (BlockingIOError, InterruptedError):
                return
            self._took(sent)
            if not self._out and self._waiting:
                self.opened()

    def close(self) -> None:
        """Send nothing more; every pending ``OnSent`` is called."""
        for stream in list(self._waiting.values()):
            self.drop(stream)
        self._out.clear()
        self.sent_bytes += self.backlog_bytes
        self.backlog_bytes = 0
        self._settle()

    def _took(self, sent: int) -> None:
        self.sent_bytes += sent
        self.backlog_bytes -= sent
        out = self._out
        while sent:
            size = len(out[0])
            if size > sent:
                out[0] = memoryview(out[0])[sent:]
                break
            sent -= size
            out.popleft()
        if self._marks:
            self._settle()

    def _settle(self) -> None:
        marks = self._marks
        while marks and marks[0][0] <= self.sent_bytes:
            marks.popleft()[1]()

    def _pump(self, stream: OutgoingStream) -> bool:
        queue = stream.queue
        while queue:
            piece = queue[0]
            if callable(piece):
                queue.popleft()
                self._marks.append((self.sent_bytes + self.backlog_bytes, piece))
                continue
            room = min(self.window, stream.window, self.max_frame, stream.queued_bytes)
            if room <= 0 or self.congested:
                return False
            self._data_frame(stream, room)
        if stream.tail is not None:
            flags = END_STREAM | END_HEADERS
            self.put(frame(HEADERS, flags, stream.id, stream.tail))
            stream.tail = None
            stream.ended()
        return True

    def _data_frame(self, stream: OutgoingStream, room: int) -> None:
        self.put(HEAD.pack(room >> 8, room & 0xFF, DATA, 0, stream.id))
        self.data_frames += 1
        self.window -= room
        stream.window -= room
        stream.queued_bytes -= room
        stream.sent_bytes += room
        self.backlog_bytes += room
        queue = stream.queue
        while room:
            piece = queue.popleft()
            if callable(piece):  # one message ends here, the next begins
                self._marks.append((self.sent_bytes + self.backlog_bytes - room, piece))
                continue
            size = len(piece)
            if size > room:
                view = memoryview(piece)
                self._out.append(view[:room])
                queue.appendleft(view[room:])
                return
            self._out.append(piece)
            room -= size
