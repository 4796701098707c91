"""What the JSON part of an inference request says, as the rest of the HTTP server uses it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from interlace.core.tensor import ITEM_BYTES
from interlace.server.dataplane.call import Parameter, RequestedOutput, RequestTemplate


class RegionSpan(NamedTuple):
    """A stretch of a registered shared-memory region."""

    name: str
    offset: int
    nbytes: int


class InputSource(NamedTuple):
    """Where the bytes of one input are.

    After the JSON part at ``offset``, unless one of the last three says otherwise: in ``data``, in
    a shared-memory ``region``, or decoded from JSON into the arena, from ``at`` on.
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
        """Whether its bytes follow the JSON part."""
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


#: Name, datatype, shape and bytes of one output.
OutputShape = tuple[str, str, tuple[int, ...], int]
#: What the start of a plain reply depends on: the deployment key, and its outputs.
PlainKey = tuple[str, tuple[OutputShape, ...]]


class ReplyStart:
    """Response head and JSON part of a reply whose outputs all follow as bytes.

    ``order`` are the positions of the model's outputs in the order of the reply, ``nbytes`` is the
    size of the whole body.
    """

    __slots__ = ("data", "key", "nbytes", "order")

    def __init__(self, key: PlainKey, order: tuple[int, ...], data: bytes, nbytes: int) -> None:
        self.key = key
        self.order = order
        self.data = data
        self.nbytes = nbytes


class DecodedRequest:
    """One JSON part, decoded. Requests with the same bytes share it, so only ``start`` changes.

    ``in_place`` holds the inputs if all of them can stay where they are received. ``plain`` says
    that every output is wanted as bytes in the reply; ``start`` is that of the last such reply.
    """

    __slots__ = (
        "binary_bytes", "binary_default", "id", "in_place", "outputs", "parameters", "plain",
        "sources", "start", "targets", "template",
    )  # fmt: skip

    def __init__(
        self,
        id: str,
        sources: tuple[InputSource, ...],
        targets: tuple[OutputTarget, ...],
        parameters: Mapping[str, Parameter],
    ) -> None:
        self.template = RequestTemplate()
        self.start: ReplyStart | None = None
        self.id = id
        self.sources = sources
        self.targets = targets
        self.parameters = parameters
        self.binary_default = parameters.get("binary_data_output") is True
        self.outputs = tuple(RequestedOutput(target.name, target.classes) for target in targets)
        self.binary_bytes = sum(source.nbytes for source in sources if source.follows)
        self.in_place = sources if all(source.in_place for source in sources) else None
        self.plain = self.binary_default if not targets else all(map(self._is_plain, targets))

    def binary(self, target: OutputTarget) -> bool:
        """Whether an output goes as bytes after the reply's JSON part."""
        return self.binary_default if target.binary is None else target.binary

    def as_json(self, target: OutputTarget) -> bool:
        """Whether an output goes as numbers or texts in the reply's JSON part."""
        return not (self.binary(target) or target.classes or target.region is not None)

    def _is_plain(self, target: OutputTarget) -> bool:
        return self.binary(target) and not target.classes and target.region is None
