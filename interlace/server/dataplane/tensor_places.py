"""Where the inputs of a request are, and how its outputs are wanted: sent between processes."""

from __future__ import annotations

from typing import NamedTuple

from interlace.core.tensor import ITEM_BYTES

Parameter = bool | int | float | str


class RegionSpan(NamedTuple):
    """A stretch of a registered shared-memory region."""

    name: str
    offset: int
    nbytes: int


class InputSource(NamedTuple):
    """Where the bytes of one input are.

    They are raw, after the JSON part at ``offset`` or as a field of the message, unless one of the
    last three fields is set. Then they are in ``data``, in a shared-memory ``region``, or decoded
    into the arena, from ``at`` on.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    data: bytes | None = None
    region: RegionSpan | None = None
    at: int | None = None

    @property
    def follows(self) -> bool:
        """Whether its bytes come raw."""
        return self.data is None and self.region is None and self.at is None

    @property
    def in_place(self) -> bool:
        """Whether it can stay where it was received, aligned to its elements."""
        return self.follows and self.offset % ITEM_BYTES.get(self.datatype, 1) == 0


class OutputTarget(NamedTuple):
    """How the client wants one output. ``binary`` is ``None`` where the request's default holds."""

    name: str
    binary: bool | None
    classes: int = 0
    region: RegionSpan | None = None
