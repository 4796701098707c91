"""Small frames over SOCK_SEQPACKET socket pairs: whole msgpack messages, no polling."""

from __future__ import annotations

import array
import asyncio
import contextlib
import logging
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgspec

FRAME_BYTES_MAX: Final = 1 << 18
_SEND_BUFFER_BYTES: Final = 1 << 20
_QUEUE_BYTES_MAX: Final = 4 << 20  #: what waits for a process that does not read
_DESCRIPTOR_BYTES: Final = socket.CMSG_SPACE(array.array("i").itemsize)

_log = logging.getLogger(__name__)

In = TypeVar("In")
Out = TypeVar("Out")
#: One frame from its bytes: the ``decode`` of a ``msgspec.msgpack.Decoder`` of tagged structs.
Decode = Callable[[memoryview], In]


def frame_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends; every frame up to ``FRAME_BYTES_MAX`` arrives whole and in order."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    return ends


def _as_text(value: Any) -> Any:
    """A frame in built-in types, in whose texts lone surrogates are escaped."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {key: _as_text(one) for key, one in value.items()}
    return [_as_text(one) for one in value] if isinstance(value, list | tuple) else value


class _Codec(Generic[Out, In]):
    """Frames to bytes and back, within one buffer that is used again for every frame."""

    def __init__(self, sock: socket.socket, decode: Decode[In]) -> None:
        self._sock = sock
        self._decode = decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._buffer = memoryview(bytearray(FRAME_BYTES_MAX))

    def bytes_of(self, frame: Out) -> bytes:
        try:
            data = self._encode(frame)
        except UnicodeEncodeError:  # a model's code may say what is no text
            data = self._encode(_as_text(msgspec.to_builtins(frame, builtin_types=(bytes,))))
        if len(data) > FRAME_BYTES_MAX:
            raise ValueError(
                f"a {type(frame).__name__} frame of {len(data)} bytes: limit {FRAME_BYTES_MAX}"
            )
        return data

    def read(self) -> In | None:
        nbytes = self._sock.recv_into(self._buffer)
        return self._decode(self._buffer[:nbytes]) if nbytes else None

    def read_with(self, descriptors: deque[int]) -> In | None:
        """As ``read``; a descriptor that comes along is put at the end of ``descriptors``."""
        nbytes, along, _, _ = self._sock.recvmsg_into([self._buffer], _DESCRIPTOR_BYTES)
        for level, kind, data in along:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.extend(array.array("i", data))
        return self._decode(self._buffer[:nbytes]) if nbytes else None


class BlockingFrameSocket(Generic[Out, In]):
    """The end of a process that does one thing at a time: it sleeps until a frame comes.

    ``descriptors`` are those that came with frames, in their order.
    """

    def __init__(self, sock: socket.socket, decode: Decode[In]) -> None:
        sock.setblocking(True)
        self._sock = sock
        self._codec: _Codec[Out, In] = _Codec(sock, decode)
        self.descriptors: deque[int] = deque()

    def send(self, frame: Out) -> None:
        """Send one frame, waiting for room.

        Raises:
            ValueError: the frame is too large.
            OSError: the other end is closed.
        """
        self._sock.send(self._codec.bytes_of(frame))

    def receive(self) -> In | None:
        """The next frame; ``None`` when the other end is closed."""
        try:
            return self._codec.read_with(self.descriptors)
        except ConnectionError:
            return None

    def fileno(self) -> int:
        """Readable when there is a frame, or the other end is closed."""
        return self._sock.fileno()

    def close(self) -> None:
        """Close this end."""
        self._sock.close()


class AsyncFrameSocket(Generic[Out, In]):
    """The end of a process with an event loop: nothing blocks, callbacks run on the loop.

    ``on_frame`` gets each frame; ``on_closed`` is called once, when the other end is gone or sends
    what is no frame, and not after ``close``. What the socket does not take waits, to a limit.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        decode: Decode[In],
        on_frame: Callable[[In], None],
        on_closed: Callable[[], None],
    ) -> None:
        sock.setblocking(False)
        self._loop = loop
        self._sock = sock
        self._codec: _Codec[Out, In] = _Codec(sock, decode)
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._queue: deque[tuple[bytes, int | None]] = deque()
        self._queued_bytes = 0
        self._open = True
        self._finishing = False
        loop.add_reader(sock.fileno(), self._readable)

    def send(self, frame: Out, descriptor: int | None = None) -> None:
        """Send one frame, and a file descriptor with it, which must stay open until it arrives.

        When the other end is gone the frame is dropped: ``on_closed`` says so.

        Raises:
            ValueError: the frame is too large.
            BufferError: the other end does not read, and the queue is full.
        """
        data = self._codec.bytes_of(frame)
        if not self._open:
            return
        if self._queue or not self._put(data, descriptor):
            self._wait(data, descriptor)

    def finish(self) -> None:
        """Tell the other end, after what is queued, that nothing more comes."""
        self._finishing = True
        if self._open and not self._queue:
            self._shut()

    def close(self) -> None:
        """Close this end; twice is once."""
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._sock.fileno())
        if self._queue:
            self._loop.remove_writer(self._sock.fileno())
        self._queue.clear()
        self._sock.close()

    def _readable(self) -> None:
        try:
            frame = self._codec.read()
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            frame = None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            # Who waits for the answer in it would wait for ever: the other end counts as failed.
            _log.error("a frame that cannot be read, its sender is given up: %s", error)
            frame = None
        if frame is not None:
            self._on_frame(frame)
            return
        self.close()
        self._on_closed()

    def _put(self, data: bytes, descriptor: int | None) -> bool:
        try:
            if descriptor is None:
                self._sock.send(data)
            else:
                rights = array.array("i", [descriptor]).tobytes()
                self._sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            pass  # the other end is gone: the reader sees it next
        return True

    def _wait(self, data: bytes, descriptor: int | None) -> None:
        if self._queued_bytes + len(data) > _QUEUE_BYTES_MAX:
            raise BufferError(f"{self._queued_bytes} bytes wait for a process that does not read")
        if not self._queue:
            self._loop.add_writer(self._sock.fileno(), self._writable)
        self._queue.append((data, descriptor))
        self._queued_bytes += len(data)

    def _writable(self) -> None:
        while self._queue and self._put(*self._queue[0]):
            self._queued_bytes -= len(self._queue.popleft()[0])
        if not self._queue:
            self._loop.remove_writer(self._sock.fileno())
            if self._finishing:
                self._shut()

    def _shut(self) -> None:
        with contextlib.suppress(OSError):  # the other end is gone: the reader sees it next
            self._sock.shutdown(socket.SHUT_WR)
