"""The decoder process: reads request bodies in the main process's arena, and writes their tensors.

It answers one question at a time and ends when the main process does.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence

import msgspec

from interlace.core.errors import Reason, ServeError
from interlace.server.compression import unpack_into
from interlace.server.dataplane.call import Parameter
from interlace.server.grpc.infer_head import InferHead, SharedMemoryRange, read_head
from interlace.server.http.decoded_request import DecodedRequest, InputSource, OutputTarget
from interlace.server.http.request_json import decode_request
from interlace.shm.arena import Arena
from interlace.shm.frame_socket import FRAME_BYTES_MAX, BlockingFrameSocket


class Unpack(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Unpack ``nbytes`` at ``offset`` to ``into``, where there is room for ``room`` bytes."""

    offset: int
    nbytes: int
    coding: str
    into: int
    room: int


class Parse(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Decode the JSON part of an inference request, ``nbytes`` at ``offset``."""

    offset: int
    nbytes: int
    has_header: bool


class Fill(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Put the tensors that the last ``Parse`` or ``ReadHead`` kept to these offsets, in order."""

    offsets: tuple[int, ...]


class ReadHead(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Parse the head of a ModelInferRequest, ``nbytes`` at ``offset``."""

    offset: int
    nbytes: int


class Unpacked(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """How many bytes it came to; ``None`` if that is more than there was room for."""

    nbytes: int | None


class Parsed(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """The request but for the bytes of its tensors.

    Sources that stood in JSON have no ``data``, and an ``at`` that is still to be filled in.
    """

    id: str
    sources: tuple[InputSource, ...]
    targets: tuple[OutputTarget, ...]
    parameters: dict[str, Parameter]


class FillDone(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """The tensors are in place."""


class DecodeRefused(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """The body is wrong; ``reason`` is a member of ``Reason`` by value."""

    reason: str
    text: str


#: A region of client shared memory, an offset and a size there.
_Range = tuple[str, int, int]


class HeadRead(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """An ``InferHead``, but for the bytes of its typed contents: ``typed`` has their sizes."""

    model: str
    version: str
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    outputs: tuple[tuple[str, int], ...]
    parameters: dict[str, Parameter]
    typed: tuple[int, ...] | None
    ranges: dict[int, _Range]
    targets: dict[str, _Range]

    def head(self) -> InferHead:
        """The head, with typed contents of no bytes."""
        return InferHead(
            self.model,
            self.version,
            self.inputs,
            self.outputs,
            self.parameters,
            None if self.typed is None else (),
            {position: SharedMemoryRange(*each) for position, each in self.ranges.items()},
            {name: SharedMemoryRange(*each) for name, each in self.targets.items()},
        )


DecoderRequest = Unpack | Parse | Fill | ReadHead
DecoderReply = Unpacked | Parsed | FillDone | DecodeRefused | HeadRead


class DecoderProcess:
    """Answers questions about bodies in one arena."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._data: Sequence[bytes] = ()

    def answer(self, question: DecoderRequest) -> DecoderReply:
        """What comes of a question; a body that is wrong is an answer."""
        try:
            if isinstance(question, Unpack):
                return self._unpack(question)
            if isinstance(question, Parse):
                return self._parse(question)
            if isinstance(question, ReadHead):
                return self._read_head(question)
            return self._fill(question)
        except ServeError as error:
            return DecodeRefused(error.reason.value, error.detail[:4096])
        except MemoryError:
            return DecodeRefused(Reason.TOO_LARGE.value, "there is no memory to decode the body")

    def _unpack(self, question: Unpack) -> Unpacked:
        packed = self._arena.view(question.offset, question.nbytes)
        target = self._arena.view(question.into, question.room)
        return Unpacked(unpack_into(packed, question.coding, target))

    def _parse(self, question: Parse) -> Parsed:
        json = self._arena.view(question.offset, question.nbytes)
        decoded = decode_request(json, question.has_header)
        self._data = [source.data for source in decoded.sources if source.data is not None]
        return _parsed(decoded)

    def _read_head(self, question: ReadHead) -> HeadRead:
        head = read_head(bytes(self._arena.view(question.offset, question.nbytes)))
        self._data = head.typed or ()
        return HeadRead(
            head.model,
            head.version,
            head.inputs,
            head.outputs,
            head.parameters,
            None if head.typed is None else tuple(map(len, head.typed)),
            {i: (each.region, each.offset, each.nbytes) for i, each in head.ranges.items()},
            {name: (each.region, each.offset, each.nbytes) for name, each in head.targets.items()},
        )

    def _fill(self, question: Fill) -> FillDone:
        data, self._data = self._data, ()
        for offset, each in zip(question.offsets, data, strict=True):
            self._arena.view(offset, len(each))[:] = each
        return FillDone()


def _parsed(decoded: DecodedRequest) -> Parsed:
    sources = [s if s.data is None else s._replace(data=None, at=0) for s in decoded.sources]
    return Parsed(decoded.id, tuple(sources), decoded.targets, dict(decoded.parameters))


def main() -> None:
    """Descriptor of the socket, the main process's id and the arena's number are the arguments."""
    descriptor, owner_pid, number = map(int, sys.argv[1:4])
    bodies = DecoderProcess(Arena.adopt(owner_pid, number))
    decoder = msgspec.msgpack.Decoder(DecoderRequest)
    frames: BlockingFrameSocket[DecoderReply, DecoderRequest] = BlockingFrameSocket(
        socket.socket(fileno=descriptor), decoder.decode
    )
    while (question := frames.receive()) is not None:
        try:
            frames.send(bodies.answer(question))
        except ValueError:
            text = f"names and parameters of the request exceed {FRAME_BYTES_MAX} bytes"
            frames.send(DecodeRefused(Reason.TOO_LARGE.value, text))
