"""One HTTP/2 connection without a process: bytes in by hand, frames out, calls echoed at once."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import hpack

from interlace.proto.messages import ModelInferRequest, ModelInferResponse
from interlace.server.door.frames import (
    AnswerFrame,
    CancelFrame,
    FormFrame,
    InferFrame,
    RefusalFrame,
    ToMain,
)
from interlace.server.grpc import http2_frames as h2
from interlace.server.grpc.http2_connection import Http2Connection
from interlace.server.grpc.infer_decoder import InferDecoder
from interlace.server.grpc.infer_head import InferTemplates
from interlace.server.grpc.limits import GrpcLimits
from interlace.server.grpc.pending_calls import PendingCalls
from interlace.server.grpc.service import GrpcService
from interlace.server.grpc.stall_timeouts import StallTimeouts
from interlace.server.shared_memory import Regions
from interlace.shm.arena import Arena, ArenaMap

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
HELLO = h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0)


@dataclass(frozen=True)
class Frame:
    kind: int
    flags: int
    stream: int
    payload: bytes


class EchoLink:
    """A main process that gives inputs back as outputs; with ``hold``, when it is told to."""

    def __init__(self, arena: Arena) -> None:
        self.frames: list[ToMain] = []
        self.hold = False
        self.cancelled: list[int] = []
        self.desk: PendingCalls
        self._arena = arena
        self._held: set[int] = set()
        self._forms: dict[int, FormFrame] = {}

    def tell(self, frame: Any) -> None:
        self.frames.append(frame)

    def turn(self) -> None:
        """Answer what was told."""
        frames, self.frames = self.frames, []
        for frame in frames:
            if isinstance(frame, FormFrame):
                self._forms[frame.number] = frame
            elif isinstance(frame, CancelFrame):
                self.cancelled.append(frame.call)
                if frame.call not in self._held:
                    continue  # answered before it was cancelled
                self._held.remove(frame.call)
                self.desk.refuse(RefusalFrame(frame.call, "cancelled", "gone", None))
            elif isinstance(frame, InferFrame):
                if self.hold:
                    self._held.add(frame.call)
                    continue
                self.desk.answer(self._answer(frame))

    def _answer(self, frame: InferFrame) -> AnswerFrame:
        form = self._forms[frame.form]
        spans: list[int] = []
        for i in range(len(form.inputs)):
            spans += (self._arena.number, *frame.spans[2 * i : 2 * i + 2])
        return AnswerFrame(frame.call, form.model, "1", form.inputs, tuple(spans))


class Wire:
    """The connection under test, and the client's end of its socket; a context."""

    def __init__(self, limits: GrpcLimits | None = None, arena_bytes: int = 8 << 20) -> None:
        self.limits = limits or GrpcLimits()
        self.arena = Arena.create(arena_bytes)
        arenas = ArenaMap(os.getpid())
        arenas.add(self.arena)
        self.link = EchoLink(self.arena)
        regions = Regions(allowed=True)
        self.intake = InferDecoder(self.arena, InferTemplates(self.link.tell), regions, self.limits)
        self.desk = PendingCalls(
            self.link.tell, self.intake, arenas, regions, self.limits.max_in_flight
        )
        self.link.desk = self.desk
        self.ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        self.ours.setblocking(False)
        for end in (self.ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        service = GrpcService(self.desk, self.intake)
        scratch = memoryview(bytearray(64 << 10))
        self.connection = Http2Connection(theirs, service, self.limits, scratch, lambda: None)
        self.patience = StallTimeouts(self.connection)
        self.fault: h2.PeerError | None = None
        self._received = b""
        self._decoder = hpack.Decoder()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.end()
        self.connection.sock.close()
        self.ours.close()
        self.link.turn()
        assert self.arena.used_bytes == 0, "slots were not given back"
        assert self.intake.heap.used_bytes == 0, "heap was not given back"
        self.arena.close()

    def send(self, data: bytes) -> None:
        """Let the connection read these bytes, and answer."""
        view = memoryview(data)
        while view:
            view = view[self.ours.send(view[:60_000]) :]
            self.turn()

    def turn(self) -> None:
        """Read what is there, answer, write."""
        while self.fault is None:
            try:
                self.connection.receive()
            except BlockingIOError:
                break
            except h2.PeerError as fault:
                self.fault = fault
                self.connection.end(fault)
                return
        self.link.turn()
        self.connection.writer.flush()

    def frames(self) -> list[Frame]:
        """The frames that have come since the last call, after all turns that there are."""
        self.turn()
        return self.arrived()

    def arrived(self) -> list[Frame]:
        """The frames that have come since the last call."""
        while True:
            try:
                data = self.ours.recv(1 << 20)
            except BlockingIOError:
                break
            if not data:
                break
            self._received += data
        found = []
        while len(self._received) >= 9:
            high, low, kind, flags, stream = h2.HEAD.unpack_from(self._received)
            end = 9 + (high << 8 | low)
            found.append(Frame(kind, flags, stream, self._received[9:end]))
            self._received = self._received[end:]
        return found

    def headers(self, frame: Frame) -> dict[str, str]:
        return {str(name): str(value) for name, value in self._decoder.decode(frame.payload)}

    def answers(self, frames: list[Frame], stream: int) -> tuple[bytes, dict[str, str]]:
        """All DATA of a stream, and its headers and trailers."""
        data, fields = b"", {}
        for frame in frames:
            if frame.stream == stream and frame.kind == h2.DATA:
                data += frame.payload
            elif frame.stream == stream and frame.kind == h2.HEADERS:
                fields.update(self.headers(frame))
        return data, fields


def head_block(path: str = INFER, extra: Mapping[str, str] | None = None) -> bytes:
    """A request's header block, without state."""
    pairs = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "test",
        "te": "trailers",
        "content-type": "application/grpc",
        **(extra or {}),
    }
    out = b""
    for name, value in pairs.items():
        out += b"\x00" + bytes((len(name),)) + name.encode()
        out += bytes((len(value),)) + value.encode()
    return out


def head(stream: int, path: str = INFER, extra: Mapping[str, str] | None = None) -> bytes:
    return h2.frame(h2.HEADERS, h2.END_HEADERS, stream, head_block(path, extra))


def message(payload: bytes, compressed: int = 0) -> bytes:
    return struct.pack(">BI", compressed, len(payload)) + payload


def data(stream: int, payload: bytes, end: bool = True) -> bytes:
    return h2.frame(h2.DATA, h2.END_STREAM if end else 0, stream, payload)


def request(*values: bytes, call_id: str = "", model: str = "echo") -> bytes:
    """A ModelInferRequest with these UINT8 tensors."""
    made = ModelInferRequest(model_name=model, id=call_id)
    for i, value in enumerate(values):
        made.inputs.add(name=f"IN{i}", datatype="UINT8", shape=[len(value)])
        made.raw_input_contents.append(value)
    encoded: bytes = made.SerializeToString()
    return encoded


def outputs(answer: bytes) -> tuple[str, list[bytes]]:
    """Id and tensors of the one response message in these bytes."""
    size = struct.unpack(">xI", answer[:5])[0]
    assert size == len(answer) - 5
    response = ModelInferResponse.FromString(answer[5:])
    return response.id, list(response.raw_output_contents)
