"""One bounded queue per model, most urgent first."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from math import inf

from interlace.core.request import UNSTATED_PRIORITY, Request
from interlace.policy.view import QueueView

#: Order of service: priority, deadline, arrival.
QueueKey = tuple[int, float, int]


def queue_key(request: Request) -> QueueKey:
    """The sort key of a request. Ids grow with arrival, so equal deadlines are served FIFO."""
    return (queue_level(request), request.deadline_ms, request.id)


def queue_level(request: Request) -> int:
    """Its stated priority; one without comes after all of those."""
    return request.priority or UNSTATED_PRIORITY


def _after(level: int, deadline_ms: float, key: QueueKey) -> bool:
    """True if a request is surely served after the one of that key; most arrive so."""
    key_level, key_ms, _ = key
    return level == key_level and deadline_ms > key_ms


class RequestQueue(QueueView):
    """Waiting requests of one model, ordered by ``queue_key``; at most ``limit`` of them."""

    __slots__ = ("_keys", "_requests", "limit", "rows")

    rows: int

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.rows = 0
        self._keys: list[QueueKey] = []
        self._requests: dict[int, Request] = {}

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def full(self) -> bool:
        return len(self._keys) >= self.limit

    @property
    def head(self) -> Request | None:
        return self._requests[self._keys[0][2]] if self._keys else None

    @property
    def complete(self) -> bool:
        """Always false: later requests can still join the next batch."""
        return False

    @property
    def next_deadline_ms(self) -> float:
        """The deadline of the head; infinite if nothing is queued."""
        return self._keys[0][1] if self._keys else inf

    @property
    def first_arrival_ms(self) -> float:
        """When the request that has waited longest came; infinite if nothing is queued."""
        first = next(iter(self._requests.values()), None)
        return inf if first is None else first.arrived_ms

    @property
    def tail_deadline_ms(self) -> float:
        return self._keys[-1][1] if self._keys else inf

    def push(self, request: Request) -> None:
        key = queue_key(request)
        if not self._keys or _after(key[0], key[1], self._keys[-1]):
            self._keys.append(key)
        else:
            insort(self._keys, key)
        self._requests[request.id] = request
        self.rows += request.rows

    def remove(self, request_id: int) -> Request | None:
        """Take one request out; ``None`` if it is not queued."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            del self._keys[bisect_left(self._keys, queue_key(request))]
            self.rows -= request.rows
        return request

    def deadline_ms(self, index: int) -> float:
        """The deadline of the request at ``index`` in order of service; infinite past the end."""
        return self._keys[index][1] if index < len(self._keys) else inf

    def rows_before(self, request: Request) -> int:
        """Rows that are served before ``request``; exact if all requests have equally many rows."""
        count = len(self._keys)
        if not count:
            return 0
        level, deadline_ms = queue_level(request), request.deadline_ms
        if _after(level, deadline_ms, self._keys[-1]):
            return self.rows
        first_level, first_ms, _ = self._keys[0]
        if level == first_level and deadline_ms < first_ms:
            return 0
        return self.rows * bisect_left(self._keys, (level, deadline_ms, request.id)) // count

    def batch_rows(self, limit: int) -> int:
        """Rows that ``take(limit)`` would return."""
        if not self._keys:
            return 0
        return sum(request.rows for request in self._next_members(limit))

    def take(self, limit: int) -> tuple[Request, ...]:
        """Remove and return the next batch: the head, and those after it that may join it.

        Only requests of the head's shape join, in order; one that is too large for the rows left
        does not stop smaller ones behind it. The head is taken even if it alone exceeds ``limit``.
        """
        members = self._next_members(limit)
        count = len(members)
        if self._keys[count - 1][2] == members[-1].id:  # the usual case: the first ``count``
            del self._keys[:count]
            for request in members:
                del self._requests[request.id]
                self.rows -= request.rows
        else:
            for request in members:
                self.remove(request.id)
        return tuple(members)

    def in_order(self) -> Sequence[Request]:
        """Everything that waits, most urgent first."""
        return [self._requests[c[2]] for c in self._keys]

    def expired(self, before_ms: float) -> list[Request]:
        """Remove and return every request whose deadline is earlier than ``before_ms``."""
        late = [self._requests[c[2]] for c in self._keys if c[1] < before_ms]
        for request in late:
            self.remove(request.id)
        return late

    def pop(self, count: int) -> list[Request]:
        """Remove and return the first ``count`` requests, whatever their shape."""
        first = [self._requests[c[2]] for c in self._keys[:count]]
        for request in first:
            self.remove(request.id)
        return first

    def clear(self) -> list[Request]:
        """Remove and return everything, in order."""
        everything = [self._requests[c[2]] for c in self._keys]
        self._keys.clear()
        self._requests.clear()
        self.rows = 0
        return everything

    def _next_members(self, limit: int) -> list[Request]:
        head = self._requests[self._keys[0][2]]
        members, rows = [head], head.rows
        for index in range(1, len(self._keys)):
            if rows >= limit:
                break
            request = self._requests[self._keys[index][2]]
            if request.shape == head.shape and rows + request.rows <= limit:
                members.append(request)
                rows += request.rows
        return members
