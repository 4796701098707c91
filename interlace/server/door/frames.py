"""Frames between the main process and the gRPC process; tensor bytes never travel in them.

Each packet is a list of frames. Calls are numbered by the gRPC process. Offsets of inputs lie in
the arena of the gRPC process; spans of outputs name their arena.
"""

from __future__ import annotations

from typing import Final

import msgspec

#: An administrative request or answer travels in pieces of this size.
PIECE_BYTES: Final = 128 << 10

Value = bool | int | float | str


class FormFrame(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """All that calls of one form share: everything but ids, budgets and bytes."""

    number: int
    model: str
    version: str
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...]  #: name, datatype, shape
    outputs: tuple[tuple[str, int], ...]  #: name, classes
    parameters: dict[str, Value]


class InferFrame(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """One call. ``spans`` is offset, size, offset, size, ..., in the order of the form's inputs."""

    call: int
    form: int
    id: str
    budget_ms: float | None
    spans: tuple[int, ...]


class CancelFrame(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """Nobody waits for that call any more; its answer frees the bytes."""

    call: int


class DeliveredFrame(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    """The output bytes of these answers are no longer needed."""

    calls: list[int]


class AskFrame(msgspec.Struct, frozen=True, array_like=True, tag=5, gc=False):
    """A piece of an administrative request: a msgpack map, as in Triton's JSON."""

    call: int
    method: str
    piece: bytes
    last: bool


class UpFrame(msgspec.Struct, frozen=True, array_like=True, tag=6, gc=False):
    """The gRPC process listens on this port."""

    port: int


class DownFrame(msgspec.Struct, frozen=True, array_like=True, tag=7, gc=False):
    """The gRPC process cannot listen, or has drained (then ``detail`` is empty)."""

    detail: str


class ForgetFrame(msgspec.Struct, frozen=True, array_like=True, tag=8, gc=False):
    """No form defined so far is used again."""


class SetupFrame(msgspec.Struct, frozen=True, array_like=True, tag=20, gc=False):
    """The first frame: who the main process is, and where and how to listen."""

    owner_pid: int
    arena: int
    host: str
    port: int
    api_key: str
    admin_key: str
    max_message_bytes: int
    max_in_flight: int
    max_connections: int


class AnswerFrame(msgspec.Struct, frozen=True, array_like=True, tag=21, gc=False):
    """Outputs of a call. ``spans`` is arena, offset, size, ... in the order of ``outputs``.

    ``inline`` has the bytes of outputs that lie in no arena, by position: classes instead of the
    tensor (the span at that position is then empty).
    """

    call: int
    model: str
    version: str
    outputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    spans: tuple[int, ...]
    inline: dict[int, bytes] = {}


class RefusalFrame(msgspec.Struct, frozen=True, array_like=True, tag=22, gc=False):
    """Why a call has no result; ``reason`` is a member of ``Reason`` by value."""

    call: int
    reason: str
    text: str
    retry_after_ms: float | None


class GivenUpFrame(msgspec.Struct, frozen=True, array_like=True, tag=30, gc=False):
    """Why a call that still runs will have no result; its memory comes back with its answer."""

    call: int
    reason: str
    text: str


class ToldFrame(msgspec.Struct, frozen=True, array_like=True, tag=23, gc=False):
    """A piece of the answer to an administrative request: a msgpack map."""

    call: int
    piece: bytes
    last: bool


class RegionsFrame(msgspec.Struct, frozen=True, array_like=True, tag=24, gc=False):
    """All shared-memory regions registered now: name, key, offset, size."""

    regions: tuple[tuple[str, str, int, int], ...]


class ArenaGoneFrame(msgspec.Struct, frozen=True, array_like=True, tag=26, gc=False):
    """Nothing lies in that arena any more, and nothing ever will."""

    arena: int


class DrainFrame(msgspec.Struct, frozen=True, array_like=True, tag=25, gc=False):
    """Take no new calls; report ``DownFrame`` when the last one is answered."""


ToMain = (
    FormFrame
    | InferFrame
    | CancelFrame
    | DeliveredFrame
    | AskFrame
    | UpFrame
    | DownFrame
    | ForgetFrame
)
ToGrpc = (
    SetupFrame
    | AnswerFrame
    | RefusalFrame
    | GivenUpFrame
    | ToldFrame
    | RegionsFrame
    | DrainFrame
    | ArenaGoneFrame
)


def pieces(data: bytes) -> list[tuple[bytes, bool]]:
    """``data`` cut for the wire, each piece with whether it is the last."""
    starts = range(0, max(1, len(data)), PIECE_BYTES)
    return [(data[i : i + PIECE_BYTES], i + PIECE_BYTES >= len(data)) for i in starts]
