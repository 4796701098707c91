"""Asks every node how it is, over and over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from interlace.core.errors import ServeError
from interlace.core.node import NodeState
from interlace.router.directory import NodeDirectory
from interlace.router.http.node_connections import NodeConnections, PendingReply
from interlace.router.http.passed_heads import ReplyHead
from interlace.router.http.reads import NodeReader
from interlace.server.limits import HeapReservation

_STATE: Final = msgspec.json.Decoder(NodeState)
_PATH: Final = "/v2/node/state"
_PATIENCE_S: Final = 0.5
#: Over 100 bytes a model and partition; it is decoded on the event loop, many times a second.
_STATE_BYTES: Final = 2 << 20
#: After what part of the time between two questions an answered request brings the next one.
_SOON: Final = 0.8
#: The timer that all nodes share comes no sooner than that after it came.
_TICK_S: Final = 0.004


#: Told a node's name, and what it said of itself.
OnHeard = Callable[[str, NodeState], None]


class NodePoller:
    """One question at a time for each node; nodes that are silent are given up.

    It asks many times a second, beside all requests, and a wake-up costs more than a question. So
    there is one timer, and a node that has just answered a request is asked if its turn is near.
    """

    def __init__(self, directory: NodeDirectory, reader: NodeReader, heard: OnHeard) -> None:
        """``heard`` is called with each node's state."""
        self.heard = heard
        self.directory = directory
        self.loop = asyncio.get_running_loop()
        self._reader = reader
        self._questions: dict[str, _Question] = {}
        self._look_s = self.loop.time()  # when it is looked next
        self._timer = self.loop.call_soon(self._wake)

    def follow(self) -> None:
        """Ask the nodes that the directory knows now, and no others."""
        wanted = {node.name for node in self.directory.nodes}
        for name in self._questions.keys() - wanted:
            self._questions.pop(name).close()
        for name in sorted(wanted - self._questions.keys()):
            connections, request = self._reader.request(name, "GET", _PATH)
            question = self._questions[name] = _Question(self, name, connections, request)
            self.directory.links(name).answered = question.hurry
        self._timer.cancel()
        self._wake()

    def close(self) -> None:
        """Ask no more."""
        self._timer.cancel()
        for question in self._questions.values():
            question.close()

    def _wake(self) -> None:
        """Ask whose turn it is, and look who is lost."""
        now_s = self.loop.time()
        if now_s >= self._look_s:
            self.directory.look((now_s - self._look_s) * 1000.0)
            directory = self.directory
            self._look_s = now_s + directory.routes.look_after_ms(directory.now_ms()) / 1000.0
        next_s = self._look_s
        for question in self._questions.values():
            next_s = min(next_s, question.turn(now_s))
        self._timer = self.loop.call_at(max(next_s, now_s + _TICK_S), self._wake)


class _Question:
    """What one node is asked again and again; it takes the replies."""

    __slots__ = ("_asked_s", "_connections", "_node", "_pending", "_poller", "_request", "_soon_s",
                 "_turn_s")  # fmt: skip

    def __init__(
        self, poller: NodePoller, node: str, connections: NodeConnections, request: bytes
    ) -> None:
        self._poller = poller
        self._node = node
        self._connections = connections
        self._request = (request,)
        self._pending: PendingReply | None = None  #: while there is no answer
        self._asked_s = 0.0
        self._turn_s = self._soon_s = 0.0  #: when it is asked next, and when it may be

    def replied(
        self, head: ReplyHead, body: bytes | memoryview, reserved: HeapReservation | None
    ) -> None:
        try:
            if head.status == 200:
                self._poller.heard(self._node, _STATE.decode(body))
        except (msgspec.DecodeError, RecursionError):
            pass  # a node of another version, or worse: it is silent to this router
        finally:
            self._end()
            if reserved is not None:
                reserved.release()

    def lost(self, why: str, fresh: bool) -> None:
        self._end()

    def too_large(self, error: ServeError) -> None:
        self._end()

    def waits(self) -> bool:
        return False

    def piece(self, head: ReplyHead, data: bytes, last: bool) -> bool:
        return False

    def most_bytes(self) -> int:
        return _STATE_BYTES

    def turn(self, now_s: float) -> float:
        """Ask, if it is time, also for want of an answer; when it is time next."""
        if now_s >= self._turn_s:
            if self._pending is None or now_s >= self._asked_s + _PATIENCE_S:
                self.close()
                self._ask(now_s)
            else:
                self._turn_s = now_s + self._pause_s()
        return self._turn_s

    def hurry(self) -> None:
        """The node has just answered a request: ask it now, if its turn is near.

        Both processes are awake, and the timer would wake them again.
        """
        if self._pending is None:
            now_s = self._poller.loop.time()
            if now_s >= self._soon_s:
                self._ask(now_s)
                self._turn_s = now_s + self._pause_s(spared=True)

    def close(self) -> None:
        """Wait for no answer."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.cancel()
            self._connections.ended(pending)

    def _ask(self, now_s: float) -> None:
        pause_s = self._pause_s()
        self._asked_s, self._soon_s, self._turn_s = now_s, now_s + _SOON * pause_s, now_s + pause_s
        with suppress(ServeError):  # it has as many requests of this router as it may have
            self._pending = self._connections.send(self._request, self)

    def _end(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            self._connections.ended(pending)

    def _pause_s(self, spared: bool = False) -> float:
        return self._poller.directory.routes.pause_ms(self._node, spared) / 1000.0
