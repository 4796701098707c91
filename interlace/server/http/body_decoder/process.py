"""The decoder process: reads request bodies in the main process's arena, and writes their tensors.

It answers one question at a time and ends when the main process does.
"""

from __future__ import annotations

import socket
import sys

import msgspec

from interlace.core.errors import Reason, ServeError
from interlace.server.compression import unpack_into
from interlace.server.http.body_decoder.messages import (
    DecodeRefused,
    DecoderReply,
    DecoderRequest,
    Fill,
    FillDone,
    Parse,
    Parsed,
    Unpack,
    Unpacked,
)
from interlace.server.http.decoded_request import DecodedRequest
from interlace.server.http.request_json import decode_request
from interlace.shm.arena import Arena
from interlace.shm.frame_socket import FRAME_BYTES_MAX, BlockingFrameSocket


class DecoderProcess:
    """Answers questions about bodies in one arena."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._data: list[bytes] = []

    def answer(self, question: DecoderRequest) -> DecoderReply:
        """What comes of a question; a body that is wrong is an answer."""
        try:
            if isinstance(question, Unpack):
                return self._unpack(question)
            if isinstance(question, Parse):
                return self._parse(question)
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

    def _fill(self, question: Fill) -> FillDone:
        data, self._data = self._data, []
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
