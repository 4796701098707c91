"""Links that weights come over, each a queue: those of a PCIe switch serve several accelerators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

from interlace.core.loading import DISK


class WeightPiece(NamedTuple):
    """One layer's weights: over which link, for how long, and how long a peer passes them on.

    ``read_ms`` is how long the disk brings them to the host before; what stays there has no copy.
    """

    layer: int
    link: str
    copy_ms: float
    pass_ms: float = 0.0
    read_ms: float = 0.0


class WeightFlow:
    """One load: its pieces in order, and when each has come.

    ``sooner`` is called when one before it was given up, on whatever accelerator.
    """

    __slots__ = ("_begins_ms", "arrives_ms", "begin_ms", "over", "pieces", "sooner")

    def __init__(self, pieces: Sequence[WeightPiece], begin_ms: float) -> None:
        self.sooner: Callable[[], None] = lambda: None
        self.pieces = list(pieces)
        self.begin_ms = begin_ms
        self.arrives_ms: dict[int, float] = {}
        self.over = False
        self._begins_ms: list[float] = []

    @property
    def end_ms(self) -> float:
        return max(self.arrives_ms.values(), default=self.begin_ms)

    def stop(self, now_ms: float) -> None:
        """What has not begun is not copied; what has is."""
        begun = sum(1 for begins_ms in self._begins_ms if begins_ms <= now_ms)
        for piece in self.pieces[begun:]:
            self.arrives_ms.pop(piece.layer)
        del self.pieces[begun:], self._begins_ms[begun:]

    def lay(self, free_ms: dict[str, float]) -> None:
        """Take the links behind what they have; ``free_ms`` is moved on."""
        passed_ms: dict[str, float] = {}
        self._begins_ms.clear()
        for piece in self.pieces:
            begins_ms = max(self.begin_ms, free_ms.get(piece.link, -inf))
            # A copy that waits for the disk keeps its link from nobody.
            free_ms[piece.link] = arrives_ms = begins_ms + piece.copy_ms
            if piece.read_ms:
                begins_ms = max(self.begin_ms, free_ms.get(DISK, -inf))
                free_ms[DISK] = begins_ms + piece.read_ms
                arrives_ms = max(arrives_ms, free_ms[DISK] + piece.copy_ms)
            if piece.pass_ms:
                arrives_ms = max(arrives_ms, passed_ms.get(piece.link, -inf)) + piece.pass_ms
                passed_ms[piece.link] = arrives_ms
            self._begins_ms.append(begins_ms)
            self.arrives_ms[piece.layer] = arrives_ms


class WeightLinks:
    """Flows take links in the order in which they begin; each link carries a piece at a time.

    Two loads over one switch therefore take as long as one after the other (DeepPlan, Table 2).
    """

    def __init__(self) -> None:
        self._flows: list[WeightFlow] = []
        self._free_ms: dict[str, float] = {}  #: before the first of the flows

    def begin(self, pieces: Sequence[WeightPiece], now_ms: float) -> WeightFlow:
        """A load begins; when its pieces come is known from now on, unless one before it stops."""
        flow = WeightFlow(pieces, now_ms)
        self._flows.append(flow)
        self._lay()
        return flow

    def end(self, flow: WeightFlow) -> None:
        """All of it has come."""
        flow.over = True
        self._lay()

    def stop(self, flow: WeightFlow, now_ms: float) -> None:
        """It is given up: those behind it come sooner."""
        flow.stop(now_ms)
        self.end(flow)
        for other in self._flows:
            if not other.over:
                other.sooner()

    def _lay(self) -> None:
        while self._flows and self._flows[0].over:
            self._flows.pop(0).lay(self._free_ms)
        free_ms = dict(self._free_ms)
        for flow in self._flows:
            flow.lay(free_ms)
