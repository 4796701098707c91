"""Large request bodies, unpacked and decoded in a process of their own."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from enum import IntEnum
from itertools import accumulate
from typing import Final

import msgspec

from interlace.core.errors import Reason, ServeError
from interlace.core.tensor import Signature, Span
from interlace.server.compression import unpack_into
from interlace.server.dataplane.call import DecodedRequest
from interlace.server.dataplane.tensor_places import InputSource, OutputTarget, Parameter
from interlace.server.grpc.infer_head import read_head
from interlace.server.http.bodies import ArenaBody, aligned
from interlace.server.http.request_json import decode_generate, decode_request
from interlace.shm import children
from interlace.shm.arena import Arena
from interlace.shm.blocks import ArenaBlocks
from interlace.shm.frame_socket import (
    FRAME_BYTES_MAX,
    AsyncFrameSocket,
    BlockingFrameSocket,
    frame_pair,
)


class Unpack(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Unpack ``nbytes`` at ``offset`` to ``into``, where there is room for ``room`` bytes."""

    offset: int
    nbytes: int
    coding: str
    into: int
    room: int


class Coding(IntEnum):
    """How the head of an inference request is written."""

    JSON = 0  #: alone, without Inference-Header-Content-Length
    WITH_HEADER = 1  #: JSON that binary data may follow
    PROTOBUF = 2  #: a ModelInferRequest without its raw tensors


class Parse(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Decode ``nbytes`` at ``offset``: with a ``signature`` a generate request, else a head."""

    offset: int
    nbytes: int
    coding: Coding
    signature: Signature | None = None


class Fill(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Put the tensors that the last ``Parse`` kept to these offsets, in order."""

    offsets: tuple[int, ...]


class Unpacked(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """How many bytes it came to; ``None`` if that is more than there was room for."""

    nbytes: int | None


class Parsed(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """The request but for the bytes of its tensors.

    Sources that stood in the head have no ``data``, and an ``at`` that is still to be filled in.
    """

    id: str
    sources: tuple[InputSource, ...]
    targets: tuple[OutputTarget, ...]
    parameters: dict[str, Parameter]
    model: str
    version: str


class FillDone(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """The tensors are in place."""


class DecodeRefused(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """The body is wrong; ``reason`` is a member of ``Reason`` by value."""

    reason: str
    text: str


DecoderRequest = Unpack | Parse | Fill
DecoderReply = Unpacked | Parsed | FillDone | DecodeRefused


class DecoderProcess:
    """Answers questions about bodies in one arena."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._data: Sequence[bytes] = ()

    def answer(self, question: DecoderRequest) -> DecoderReply:
        """The reply to a question; for a wrong body it is ``DecodeRefused``."""
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
        head = self._arena.view(question.offset, question.nbytes)
        if question.coding is Coding.PROTOBUF:
            decoded = read_head(bytes(head))
        elif question.signature is not None:
            decoded = decode_generate(question.signature, head)
        else:
            decoded = decode_request(head, question.coding is Coding.WITH_HEADER)
        self._data = [source.data for source in decoded.sources if source.data is not None]
        sources = [s if s.data is None else s._replace(data=None, at=0) for s in decoded.sources]
        return Parsed(
            decoded.id,
            tuple(sources),
            decoded.targets,
            dict(decoded.parameters),
            decoded.model,
            decoded.version,
        )

    def _fill(self, question: Fill) -> FillDone:
        data, self._data = self._data, ()
        for offset, each in zip(question.offsets, data, strict=True):
            self._arena.view(offset, len(each))[:] = each
        return FillDone()


def main(descriptor: int, owner_pid: int, number: int) -> None:
    """Answer the questions on a socket; the arena is the owner's, of that number."""
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


#: Bodies that may wait for the process; one of 16 MiB of JSON takes it about half a second.
WAITING_MAX: Final = 64
#: How long the process is kept without work.
IDLE_S: Final = 60.0
_CHILD: Final = f"{__name__}:main"


class BodyDecoder:
    """Unpacks and decodes bodies that would hold the event loop for milliseconds.

    The decoder holds the interpreter's lock from the first byte to the last, so a thread would not
    do. Bodies and tensors stay in the arena: only frames go to and fro.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._frames: AsyncFrameSocket[DecoderRequest, DecoderReply] | None = None
        self._answer: asyncio.Future[DecoderReply] | None = None
        self._idle: asyncio.TimerHandle | None = None

    async def unpack(self, packed: ArenaBody, coding: str, plain: ArenaBody) -> bool:
        """Unpack a body to where ``plain`` has room, and cut that to size; false if too small.

        Raises:
            ServeError: it is not of that coding, or the process cannot take it.
        """
        question = Unpack(packed.offset, packed.length, coding, plain.offset, len(plain.view))
        async with self._exclusive():
            answer = await self._ask(question)
        assert isinstance(answer, Unpacked)
        if answer.nbytes is None:
            return False
        plain.cut(answer.nbytes)
        return True

    async def decode(
        self, head: Span, coding: Coding, signature: Signature | None = None
    ) -> tuple[DecodedRequest, ArenaBlocks]:
        """The meaning of a head, and the block in which the tensors given in it then lie.

        With a model's ``signature`` it is the JSON of a generate request.

        Raises:
            ServeError: it is no inference request, there is no room, or the process is too busy.
        """
        async with self._exclusive():
            parsed = await self._ask(Parse(head.offset, head.nbytes, coding, signature))
            assert isinstance(parsed, Parsed)
            sizes = [source.nbytes for source in parsed.sources if source.at is not None]
            offsets, blocks = await self._filled(sizes)
        return _placed(parsed, offsets), blocks

    async def _filled(self, sizes: Sequence[int]) -> tuple[Sequence[int], ArenaBlocks]:
        """Where tensors of these sizes lie that the process kept, and the block that holds them."""
        blocks = ArenaBlocks(self._arena)
        try:
            at = blocks.alloc(max(1, sum(map(aligned, sizes))))
            offsets = [at + before for before in accumulate(map(aligned, sizes), initial=0)][:-1]
            await self._ask(Fill(tuple(offsets)))
        except BaseException:
            blocks.free()
            raise
        return offsets, blocks

    def close(self) -> None:
        """End the process; requests that wait for it are refused."""
        if self._idle is not None:
            self._idle.cancel()
        if self._frames is not None:
            self._frames.close()
        self._gone()

    # ------------------------------------------------------------------------------------ life

    async def _ask(self, question: DecoderRequest) -> DecoderReply:
        if self._frames is None:
            self._start()
        assert self._frames is not None
        answer = self._answer = self._loop.create_future()
        self._frames.send(question)
        found: DecoderReply = await answer
        if isinstance(found, DecodeRefused):
            raise ServeError(Reason(found.reason), found.text)
        return found

    def _start(self) -> None:
        ours, theirs = frame_pair()
        try:
            shared = theirs.fileno()
            arguments = shared, os.getpid(), self._arena.number
            # Models come first where both want a core.
            self._child = children.start(_CHILD, *arguments, descriptors=[shared], yields=True)
        except OSError as error:
            ours.close()
            text = f"the process that decodes large bodies cannot start: {error}"
            raise ServeError(Reason.BACKEND, text) from error
        finally:
            theirs.close()
        decode = msgspec.msgpack.Decoder(DecoderReply).decode
        self._frames = AsyncFrameSocket(self._loop, ours, decode, self._answered, self._gone)

    def _answered(self, answer: DecoderReply) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    def _gone(self) -> None:
        """It ended, or is to end: nothing that it was asked will be answered."""
        child, self._child, self._frames = self._child, None, None
        if child is not None:
            children.end(child)
        if self._answer is not None and not self._answer.done():
            text = "the process that decodes large bodies died; send the request again"
            self._answer.set_exception(ServeError(Reason.BACKEND, text))

    def _rest(self) -> None:
        if not self._waiting and self._frames is not None:
            self._frames.close()
            self._gone()

    @asynccontextmanager
    async def _exclusive(self) -> AsyncIterator[None]:
        """The process for oneself, once it is free.

        Raises:
            ServeError: too many wait already.
        """
        if self._waiting >= WAITING_MAX:
            text = f"{self._waiting} large bodies wait to be decoded; send tensors as binary data"
            raise ServeError(Reason.OVERLOADED, text, retry_after_ms=1000.0)
        self._waiting += 1
        try:
            async with self._turn:
                yield
        finally:
            self._waiting -= 1
            if self._idle is not None:
                self._idle.cancel()
            self._idle = self._loop.call_later(IDLE_S, self._rest)


def _placed(parsed: Parsed, offsets: Sequence[int]) -> DecodedRequest:
    """The request with its tensors at these offsets in the arena."""
    there = iter(offsets)
    sources = [s if s.at is None else s._replace(at=next(there)) for s in parsed.sources]
    return DecodedRequest(
        parsed.id,
        tuple(sources),
        parsed.targets,
        parsed.parameters,
        parsed.model,
        parsed.version,
    )
