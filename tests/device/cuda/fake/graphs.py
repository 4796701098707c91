"""Graphs of the fake GPU: recorded bodies that are called again, and must do the same again."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.device.cuda.fake.memory import Memory
from tests.device.cuda.fake.misuse import Misuse

_SMALL = 1 << 32
_ELSEWHERE = -1


class Node(NamedTuple):
    """One recorded launch or copy. Addresses of the framework's own tensors are ``_ELSEWHERE``:

    a CPU framework allocates anew in each replay, where a GPU's graph keeps its addresses.
    """

    what: object
    stream: int
    arguments: tuple[int, ...]


def node(memory: Memory, what: object, stream: int, arguments: tuple[int, ...]) -> Node:
    kept = (one if one < _SMALL or memory.known(one) else _ELSEWHERE for one in arguments)
    return Node(what, stream, tuple(kept))


@dataclass(eq=False)
class Pool:
    """Memory that graphs of one lane share: they must never run side by side."""

    stream: int
    pending: dict[int, int] = field(default_factory=dict)  #: launches not ended, by stream


@dataclass(eq=False)
class Graph:
    """An executable graph. ``sms`` are those of the stream that it was captured on."""

    body: Callable[[], None]
    pool: Pool
    nodes: list[Node]
    nbytes: int
    address: int = 0  #: its share of device memory
    issued: int = 0
    ended: int = 0

    def issue(self, stream: int) -> int:
        """A ticket: launches of one graph run one after the other."""
        if any(count for other, count in self.pool.pending.items() if other != stream):
            raise Misuse("two graphs of one memory pool on two streams at once")
        self.pool.pending[stream] = self.pool.pending.get(stream, 0) + 1
        self.issued += 1
        return self.issued - 1

    def end(self, stream: int) -> None:
        self.pool.pending[stream] -= 1
        self.ended += 1


class Recording:
    """What one thread captures or replays just now, on one stream.

    ``latched`` says up to which record of each event a replay waits: the last before its launch.
    """

    def __init__(
        self,
        stream: int,
        expected: list[Node] | None = None,
        lax: bool = False,
        latched: dict[int, int] | None = None,
    ) -> None:
        self.stream = stream
        self.lax = lax
        self.latched = latched or {}
        self.nodes: list[Node] = []
        self._expected = expected

    @property
    def replays(self) -> bool:
        return self._expected is not None

    def add(self, one: Node) -> None:
        if one.stream != self.stream:
            raise Misuse(f"work on stream {one.stream:#x} during a capture on {self.stream:#x}")
        if self._expected is not None:
            index = len(self.nodes)
            if index >= len(self._expected) or self._expected[index] != one:
                known = self._expected[index] if index < len(self._expected) else "nothing"
                raise Misuse(f"a graph keeps what was captured: {known}, replayed: {one}")
        self.nodes.append(one)

    def finish(self) -> None:
        if self._expected is not None and len(self.nodes) != len(self._expected):
            raise Misuse(f"{len(self.nodes)} nodes replayed of {len(self._expected)} captured")


class Recordings(threading.local):
    """The recording of each thread."""

    current: Recording | None = None
