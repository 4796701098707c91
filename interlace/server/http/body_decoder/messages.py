"""Messages between the main process and the decoder process; bodies themselves lie in the arena.

One question at a time: an ``Unpack`` or ``Parse``, its answer, and after a ``Parsed`` one ``Fill``.
Offsets lie in the arena of request bodies.
"""

from __future__ import annotations

import msgspec

from interlace.server.dataplane.call import Parameter
from interlace.server.http.decoded_request import InputSource, OutputTarget


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
    """Put the tensors of the last ``Parse`` that stood in JSON to these offsets, in order."""

    offsets: tuple[int, ...]


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


DecoderRequest = Unpack | Parse | Fill
DecoderReply = Unpacked | Parsed | FillDone | DecodeRefused
