"""Asks every node how it is, over and over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from interlace.core.errors import ServeError
from interlace.core.node import NodeState
from interlace.router.directory import NodeDirectory
from interlace.router.http.node_connections import NodeConnections, PendingReply
from interlace.router.http.passed_heads import ReplyHead
from interlace.router.http.reads import NodeReader
from interlace.server.heap_budget import HeapReservation

_STATE: Final = msgspec.json.Decoder(NodeState)
_PATH: Final = "/v2/node/state"
_PATIENCE_S: Final = 0.5


#: Told a node's name, and what it said of itself.
OnHeard = Callable[[str, NodeState], None]


class NodePoller:
    """One question at a time for each node; nodes that are silent are given up.

    Without tasks or futures: it asks many times a second, beside all requests.
    """

    def __init__(self, directory: NodeDirectory, reader: NodeReader, heard: OnHeard) -> None:
        """``heard`` is told what nodes say."""
        self.heard = heard
        self._directory = directory
        self._reader = reader
        self._loop = asyncio.get_running_loop()
        self._questions: dict[str, _Question] = {}
        self._look_s = self._loop.time() + self._pause_s()  # when it is looked next
        self._looking = self._loop.call_at(self._look_s, self._look)

    def follow(self) -> None:
        """Ask the nodes that the directory knows now, and no others."""
        wanted = {node.name for node in self._directory.nodes}
        for name in self._questions.keys() - wanted:
            self._questions.pop(name).close()
        for name in wanted - self._questions.keys():
            self._questions[name] = _Question(self, self._reader, name)

    def close(self) -> None:
        """Ask no more."""
        self._looking.cancel()
        for question in self._questions.values():
            question.close()

    def pause_s(self, node: str) -> float:
        """Until a node that has just answered is asked again."""
        return self._directory.pause_ms(node) / 1000.0

    def _pause_s(self) -> float:
        """Until all are looked at again: as soon as the first is asked."""
        return min(map(self.pause_s, self._questions), default=self.pause_s(""))

    def _look(self) -> None:
        now_s = self._loop.time()
        late_s, self._look_s = now_s - self._look_s, now_s + self._pause_s()
        self._looking = self._loop.call_at(self._look_s, self._look)
        for question in self._questions.values():
            question.give_up(now_s - _PATIENCE_S)
        self._directory.look(max(0.0, late_s) * 1000.0)


class _Question:
    """What one node is asked again and again; it takes the replies."""

    __slots__ = ("_asked_s", "_loop", "_node", "_pending", "_poller", "_reader", "_timer")

    def __init__(self, poller: NodePoller, reader: NodeReader, node: str) -> None:
        self._poller = poller
        self._reader = reader
        self._node = node
        self._loop = asyncio.get_running_loop()
        #: while there is no answer: over whose connections it was asked, and what is on its way
        self._pending: tuple[NodeConnections, PendingReply] | None = None
        self._asked_s = 0.0
        self._timer = self._loop.call_soon(self._ask)

    def replied(
        self, head: ReplyHead, body: bytes | memoryview, reserved: HeapReservation | None
    ) -> None:
        try:
            if head.status == 200:
                self._poller.heard(self._node, _STATE.decode(body))
        except msgspec.DecodeError:
            pass  # a node of another version: it is silent to this router
        finally:
            self._end()
            if reserved is not None:
                reserved.release()

    def lost(self, why: str, fresh: bool) -> None:
        self._end()

    def too_large(self, error: ServeError) -> None:
        self._end()

    def give_up(self, before_s: float) -> None:
        """Ask anew if the last question was asked before that time, and has no answer."""
        if self._pending is not None and self._asked_s < before_s:
            self._pending[1].cancel()
            self._end()

    def close(self) -> None:
        """Ask no more."""
        if self._pending is not None:
            self._pending[1].cancel()
            self._end()
        self._timer.cancel()

    def _ask(self) -> None:
        self._asked_s = self._loop.time()
        connections, request = self._reader.request(self._node, "GET", _PATH)
        try:
            self._pending = connections, connections.send((request,), self)
        except ServeError:  # it has as many requests of this router as it may have
            self._timer = self._loop.call_later(self._poller.pause_s(self._node), self._ask)

    def _end(self) -> None:
        asked, self._pending = self._pending, None
        if asked is not None:
            asked[0].ended(asked[1])
            self._timer = self._loop.call_later(self._poller.pause_s(self._node), self._ask)
