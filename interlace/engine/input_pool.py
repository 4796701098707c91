"""A model's inputs on an accelerator: a ring of slots, filled in order of arrival."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Final

from interlace.core.request import Request
from interlace.core.tensor import BYTES
from interlace.policy.view import QueueView

#: The most memory of an accelerator that one model's slots may take.
_RING_BYTES: Final = 1 << 28


@dataclass(slots=True, eq=False)
class PoolEntry:
    """A request's slots: ``at`` counts slots since the ring was last empty, skipped ones too."""

    request: Request
    at: int
    copied: bool = False
    waits: bool = True
    done: bool = False  #: its batch has ended, or it was taken out

    @property
    def free(self) -> bool:
        return self.done and self.copied


class InputPool(QueueView):
    """The GPU resident memory pool of E2bird (section 5.1, Table 2, Figure 5), as bookkeeping.

    Requests take contiguous slots, one for each row, in the order in which they are staged. A
    request that does not fit before the ring's end begins at its start. Requests are launched in
    that order. A batch is a window: requests whose slots follow each other, all copied, so that
    their rows are one contiguous array. It ends where the ring does, and where a cancelled request
    left a gap. Slots become free in order, when batches have ended.

    All rows have one shape, that of the first request of an empty pool, which also decides how many
    slots there are: ``most``, less where rows are so large that these would take over 256 MiB, but
    not under ``least``. What it says as a ``QueueView`` is about the next window.
    """

    __slots__ = ("_by_id", "_held", "_least", "_most", "_next", "_waiting", "shape", "slots")

    def __init__(self, most: int, least: int = 1) -> None:
        self._most, self._least = most, min(least, most)
        self.slots = most
        self.shape: Hashable = None
        self._next = 0
        self._held: deque[PoolEntry] = deque()
        self._waiting: deque[PoolEntry] = deque()
        self._by_id: dict[int, PoolEntry] = {}

    def __len__(self) -> int:
        """Requests that wait here, copied or not."""
        return sum(1 for one in self._waiting if one.waits)

    # ------------------------------------------------------------------------------- the ring

    @property
    def room(self) -> bool:
        """True if there is a slot for at least one more row."""
        return not self._held or self._next - self._held[0].at < self.slots

    def fits(self, request: Request) -> bool:
        """True if the request could be staged here once there is room."""
        if any(tensor.datatype == BYTES for tensor in request.inputs):
            return False
        if not self._held:
            return request.rows <= self._slots_for(request)
        return request.shape == self.shape and request.rows <= self.slots

    def put(self, request: Request) -> int | None:
        """Take slots for a request that fits: the first of them; ``None`` without room."""
        if not self._held:
            self._next, self.shape, self.slots = 0, request.shape, self._slots_for(request)
        at, rows = self._next, request.rows
        if at % self.slots + rows > self.slots:
            at += self.slots - at % self.slots
        oldest = self._held[0].at if self._held else at
        if at + rows - oldest > self.slots:
            return None
        staged = PoolEntry(request, at)
        self._next = at + rows
        self._held.append(staged)
        self._waiting.append(staged)
        self._by_id[request.id] = staged
        return at % self.slots

    def copied(self, request: Request, slot: int) -> PoolEntry | None:
        """Note the end of a copy; returns the request's entry if it still waits."""
        known = self._by_id.get(request.id)
        for staged in (known,) if known is not None and not known.copied else self._held:
            if staged.request.id == request.id and staged.at % self.slots == slot:
                staged.copied = True
                self._release()
                return staged if staged.waits else None
        return None

    def take(self, limit: int) -> tuple[int, tuple[Request, ...]]:
        """Start the next batch: its first slot, and the requests of up to ``limit`` rows.

        The first of them is taken even if it alone has more.
        """
        members: list[PoolEntry] = []
        rows = 0
        for staged in self._window():
            if members and rows + staged.request.rows > limit:
                break
            members.append(staged)
            rows += staged.request.rows
        for staged in members:
            staged.waits = False
            self._waiting.popleft()
        return members[0].at % self.slots, tuple([staged.request for staged in members])

    def ended(self, request: Request) -> None:
        """Free the slots of a request whose batch has ended; unknown requests are ignored."""
        staged = self._by_id.get(request.id)
        if staged is not None and not staged.waits:
            self._finish(staged)

    def remove(self, request_id: int) -> Request | None:
        """Take out a request that waits; ``None`` if it does not wait here."""
        staged = self._by_id.get(request_id)
        if staged is None or not staged.waits:
            return None
        staged.waits = False
        self._finish(staged)
        return staged.request

    def clear(self) -> list[Request]:
        """Take out everything that waits, in order."""
        return self._remove_all([one for one in self._waiting if one.waits])

    def expired(self, before_ms: float) -> list[Request]:
        """Take out everything that waits with a deadline earlier than ``before_ms``."""
        late = [s for s in self._waiting if s.waits and s.request.deadline_ms < before_ms]
        return self._remove_all(late)

    def pop(self, count: int) -> list[Request]:
        """Take out the first ``count`` requests that wait."""
        return self._remove_all([one for one in self._waiting if one.waits][:count])

    # ------------------------------------------------------------------------------- as a view

    @property
    def first(self) -> Request | None:
        """The request to be launched next, copied or not."""
        self._skip_gaps()
        return self._waiting[0].request if self._waiting else None

    @property
    def head(self) -> Request | None:
        self._skip_gaps()
        return self._waiting[0].request if self._waiting and self._waiting[0].copied else None

    @property
    def rows(self) -> int:
        return sum(staged.request.rows for staged in self._window())

    @property
    def complete(self) -> bool:
        """True if the window ends at the ring's end, or at a gap that a cancelled request left."""
        window = list(self._window())
        if not window:
            return False
        end = window[-1].at + window[-1].request.rows
        return not end % self.slots or any(one.at > end for one in self._waiting if one.waits)

    @property
    def waiting_rows(self) -> int:
        """Rows that wait, copied or not."""
        return sum(one.request.rows for one in self._waiting if one.waits)

    @property
    def tail_deadline_ms(self) -> float:
        return max((s.request.deadline_ms for s in self._window()), default=float("inf"))

    @property
    def next_deadline_ms(self) -> float:
        """The earliest deadline of all that waits."""
        waiting = (s.request.deadline_ms for s in self._waiting if s.waits)
        return min(waiting, default=float("inf"))

    def deadline_ms(self, index: int) -> float:
        for place, staged in enumerate(self._window()):
            if place == index:
                return staged.request.deadline_ms
        return float("inf")

    def rows_before(self, request: Request) -> int:
        return self.waiting_rows

    def batch_rows(self, limit: int) -> int:
        rows = 0
        for staged in self._window():
            if rows and rows + staged.request.rows > limit:
                break
            rows += staged.request.rows
        return rows

    def _slots_for(self, request: Request) -> int:
        row_bytes = sum(tensor.span.nbytes for tensor in request.inputs) // request.rows
        return max(self._least, min(self._most, _RING_BYTES // max(1, row_bytes)))

    def _window(self) -> Iterator[PoolEntry]:
        self._skip_gaps()
        end: int | None = None
        for staged in self._waiting:
            if not (staged.waits and staged.copied) or end not in (None, staged.at):
                return
            end = staged.at + staged.request.rows
            yield staged
            if not end % self.slots:
                return

    def _skip_gaps(self) -> None:
        while self._waiting and not self._waiting[0].waits:
            self._waiting.popleft()

    def _remove_all(self, several: list[PoolEntry]) -> list[Request]:
        for staged in several:
            staged.waits = False
            self._finish(staged)
        return [staged.request for staged in several]

    def _finish(self, staged: PoolEntry) -> None:
        staged.done = True
        if self._by_id.get(staged.request.id) is staged:
            del self._by_id[staged.request.id]
        self._release()

    def _release(self) -> None:
        while self._held and self._held[0].free:
            self._held.popleft()
