"""The gRPC process's end of its socket to the main process."""

from __future__ import annotations

import socket
from collections import deque

import msgspec

from interlace.server.door.frames import ToGrpc, ToMain
from interlace.shm.frame_socket import FRAME_BYTES_MAX


class Link:
    """Frames out are gathered and leave together at the end of a turn of the loop."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(list[ToGrpc]).decode
        self._buffer = memoryview(bytearray(FRAME_BYTES_MAX))
        self._frames: list[ToMain] = []
        self._packets: deque[bytes] = deque()

    @property
    def unsent(self) -> bool:
        """Whether frames wait for the next ``flush`` (not: for room in the socket)."""
        return bool(self._frames)

    def tell(self, frame: ToMain) -> None:
        """Send a frame with the next ``flush``."""
        self._frames.append(frame)

    def receive(self) -> list[ToGrpc] | None:
        """The frames of one packet, if there is one; ``None`` when the main process is gone."""
        try:
            nbytes = self._sock.recv_into(self._buffer)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            return None
        return self._decode(self._buffer[:nbytes]) if nbytes else None

    def flush(self) -> bool:
        """Send what was told; False while the socket does not take it all."""
        if self._frames:
            frames, self._frames = self._frames, []
            self._pack(frames)
        while self._packets:
            try:
                self._sock.send(self._packets[0])
            except (BlockingIOError, InterruptedError):
                return False
            except OSError:
                self._packets.clear()  # the main process is gone: the next receive says so
                return True
            self._packets.popleft()
        return True

    def _pack(self, frames: list[ToMain]) -> None:
        data = self._encode(frames)
        if len(data) <= FRAME_BYTES_MAX:
            self._packets.append(data)
        elif len(frames) > 1:
            middle = len(frames) // 2
            self._pack(frames[:middle])
            self._pack(frames[middle:])
        else:
            raise ValueError(f"a frame of {len(data)} bytes: limit {FRAME_BYTES_MAX}")
