"""One HTTP/2 connection without a process: bytes in by hand, frames out, calls echoed at once."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import hpack

from interlace.core.request import Callbacks, Outcome, Reply, Request
from interlace.proto.messages import ModelInferRequest, ModelInferResponse
from interlace.server.dataplane.call import InferenceCall
from interlace.server.dataplane.inference import InferenceContext
from interlace.server.dataplane.plane import OnError
from interlace.server.grpc import http2_frames as h2
from interlace.server.grpc.http2_connection import Http2Connection
from interlace.server.grpc.infer_calls import LocalInference
from interlace.server.grpc.service import GrpcService
from interlace.server.limits import GrpcLimits
from interlace.server.model_table import ModelTable
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


class EchoPlane:
    """A data plane that gives inputs back as outputs at the next ``turn``; not while ``hold``."""

    def __init__(self) -> None:
        self.hold = False
        self.cancelled: list[int] = []
        self._waiting: dict[int, tuple[Request, Callbacks]] = {}
        self._next = 0

    def infer(self, call: InferenceCall, caller: Callbacks, on_error: OnError) -> Request:
        self._next += 1
        request = Request(self._next, f"{call.model}/1#1", 0.0, 1e9, inputs=call.inputs)
        self._waiting[request.id] = (request, caller)
        return request

    def cancel(self, request: Request) -> None:
        self.cancelled.append(request.id)
        waiting = self._waiting.pop(request.id, None)
        if waiting is not None:
            waiting[1].on_reply(Reply(request, Outcome.CANCELLED))

    def delivered(self, reply: Reply) -> None:
        pass

    def turn(self) -> None:
        """Answer what came."""
        if self.hold:
            return
        waiting, self._waiting = self._waiting, {}
        for request, caller in waiting.values():
            caller.on_reply(Reply(request, Outcome.OK, request.inputs))


class ReadyApi:
    """Administration of a server that is ready, and can do nothing else."""

    def ready(self) -> bool:
        return True


class Wire:
    """The connection under test, and the client's end of its socket; a context."""

    def __init__(self, limits: GrpcLimits | None = None, arena_bytes: int = 8 << 20) -> None:
        self.limits = limits or GrpcLimits()
        self.arena = Arena.create(arena_bytes)
        arenas = ArenaMap(os.getpid())
        arenas.add(self.arena)
        self.plane = EchoPlane()
        plane: Any = self.plane
        bodies: Any = None  # needs a loop, as long heads do
        regions = Regions(allowed=True)
        context = InferenceContext(plane, ModelTable(), self.arena, arenas, regions, bodies)
        front = LocalInference(context, self.limits)
        self.decoder = front.decoder
        api: Any = ReadyApi()
        self.ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        self.ours.setblocking(False)
        for end in (self.ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        service = GrpcService(front, api)
        scratch = memoryview(bytearray(64 << 10))
        self.connection = Http2Connection(theirs, service, self.limits, scratch, lambda: None)
        self.fault: h2.PeerError | None = None
        self._received = b""
        self._decoder = hpack.Decoder()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.end()
        self.connection.sock.close()
        self.ours.close()
        self.plane.hold = False
        self.plane.turn()
        assert self.arena.used_bytes == 0, "blocks were not given back"
        assert self.decoder.heap.used_bytes == 0, "heap was not given back"
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
        self.plane.turn()
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
