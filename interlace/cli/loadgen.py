"""Open-loop load: requests leave when they are meant to, whatever became of those before."""

from __future__ import annotations

import heapq
import select
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat

from interlace.cli.loadlane import Lane
from interlace.core.user_errors import UserError
from interlace.load.inference_body import LoadCall
from interlace.load.v2_client import V2Client

_START_S = 0.05  #: between building everything and the first send


@dataclass(slots=True)
class Sent:
    """One request. Times are seconds from the start of the run; latency is ``end_s - due_s``.

    ``crowded``: every connection was taken when it was due.
    """

    flow: int
    due_s: float
    crowded: bool = False
    sent_s: float = -1.0
    end_s: float = -1.0
    status: int = 0  #: 0 while unanswered, -1 for a connection that broke
    reason: str = ""


@dataclass(slots=True)
class Flow:
    """One model's requests: what is sent, when."""

    ask: LoadCall
    due_s: Sequence[float]
    sent: list[Sent] = field(default_factory=list)


class Load:
    """Sends the flows over a fixed set of connections.

    A request whose time has come while every connection is taken waits here, and the wait counts:
    its latency runs from when it was due. So a slow server cannot slow the clock it is measured by
    (no coordinated omission).
    """

    def __init__(self, server: V2Client, flows: Sequence[Flow], connections: int) -> None:
        """Open the connections.

        Raises:
            CommandError: the server does not take them.
        """
        self._server = server
        self._flows = flows
        self._epoll = select.epoll()
        self._lanes: dict[int, Lane] = {}
        self._free: list[Lane] = []
        self._waiting: deque[Sent] = deque()
        self._sent: list[Sent] = []
        self._under_way = 0
        self._zero_s = 0.0
        try:
            for _ in range(connections):
                self._open()
        except OSError as error:
            self.close()
            raise UserError(f"{server.url}: cannot connect ({error})") from None

    def run(self, drain_s: float) -> None:
        """Send everything; wait up to ``drain_s`` after the last one for answers."""
        schedule = self._schedule()
        following = next(schedule, None)
        self._zero_s = time.perf_counter() + _START_S
        give_up_s = float("inf")
        while following is not None or self._waiting or self._under_way:
            now_s = self._now_s()
            while following is not None and following.due_s <= now_s:
                following.crowded = len(self._free) <= len(self._waiting)
                self._waiting.append(following)
                following = next(schedule, None)
            if following is None and give_up_s == float("inf"):
                give_up_s = now_s + drain_s
            if now_s >= give_up_s:
                return
            self._send_waiting()
            self._wait(following.due_s if following is not None else give_up_s)

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close()
        self._epoll.close()

    def want(self, lane: Lane, write: bool) -> None:
        """A lane's socket is full, or no longer."""
        self._epoll.modify(lane.socket, select.EPOLLIN | (select.EPOLLOUT if write else 0))

    def _schedule(self) -> Iterator[Sent]:
        # A generator: a long run at a high rate is not laid out in memory before it starts.
        times = (zip(flow.due_s, repeat(index)) for index, flow in enumerate(self._flows))
        for due_s, index in heapq.merge(*times):
            sent = Sent(index, due_s)
            self._flows[index].sent.append(sent)
            yield sent

    def _now_s(self) -> float:
        return time.perf_counter() - self._zero_s

    def _open(self) -> None:
        lane = Lane(self._server, self)
        self._lanes[lane.socket.fileno()] = lane
        self._epoll.register(lane.socket, select.EPOLLIN)
        self._free.append(lane)

    def _send_waiting(self) -> None:
        while self._waiting and self._free:
            sent, lane = self._waiting.popleft(), self._free.pop()
            lane.ticket = len(self._sent)
            self._sent.append(sent)
            self._under_way += 1
            sent.sent_s = self._now_s()
            try:
                lane.send(self._flows[sent.flow].ask.wire)
            except OSError as error:
                self._broke(lane, str(error))

    def _wait(self, until_s: float) -> None:
        # poll() rounds its timeout to milliseconds, select() to microseconds: the epoll is nested.
        timeout_s = max(0.0, until_s - self._now_s())
        if not select.select([self._epoll], [], [], timeout_s)[0]:
            return
        for descriptor, events in self._epoll.poll(0):
            lane = self._lanes.get(descriptor)
            if lane is None:
                continue
            try:
                if events & select.EPOLLOUT:
                    lane.flush()
                if events & ~select.EPOLLOUT:
                    self._receive(lane)
            except OSError as error:
                self._broke(lane, str(error))

    def _receive(self, lane: Lane) -> None:
        answer = lane.receive()
        if answer is None:
            return
        self._end(lane, answer.status, answer.reason)
        self._free.append(lane)

    def _end(self, lane: Lane, status: int, reason: str) -> None:
        sent, lane.ticket = self._sent[lane.ticket], -1
        sent.end_s, sent.status, sent.reason = self._now_s(), status, reason
        self._under_way -= 1

    def _broke(self, lane: Lane, detail: str) -> None:
        if lane.ticket >= 0:
            self._end(lane, -1, detail)
        else:
            self._free.remove(lane)
        del self._lanes[lane.socket.fileno()]
        self._epoll.unregister(lane.socket)
        lane.close()
        try:
            self._open()
        except OSError:
            if not self._lanes:
                raise UserError(f"{self._server.url}: the server is gone ({detail})") from None
