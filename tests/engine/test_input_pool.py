"""The ring of staged inputs: laws against a plain account of slots, and windows by hand."""

from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from interlace.core.request import Request
from interlace.core.tensor import BYTES, Span, Tensor
from interlace.engine.input_pool import InputPool


def request(number: int, rows: int = 1, deadline_ms: float = 100.0, shape: str = "s") -> Request:
    return Request(number, "m", 0.0, deadline_ms, rows, shape)


class PoolMachine(RuleBasedStateMachine):
    """Random staging, copying, launching, ending and cancelling; who holds a slot is written down.

    A slot is held from ``put`` until the copy has ended and so has the batch, or the wait.
    """

    @initialize(slots=st.integers(3, 9))
    def build(self, slots: int) -> None:
        self.pool = InputPool(slots)
        self.copying: dict[int, tuple[Request, int]] = {}
        self.order: list[int] = []  # waiting, in order of staging
        self.place: dict[int, int] = {}
        self.rows: dict[int, int] = {}
        self.running: list[tuple[Request, ...]] = []
        self.held: dict[int, int] = {}
        self.copied: set[int] = set()
        self.over: set[int] = set()
        self.number = 0

    def _let_go(self, number: int) -> None:
        if number in self.over and number in self.copied:
            self.held = {slot: owner for slot, owner in self.held.items() if owner != number}

    @rule(rows=st.integers(1, 4))
    def put(self, rows: int) -> None:
        self.number += 1
        one = request(self.number, rows)
        if not self.pool.fits(one):
            assert rows > self.pool.slots
            return
        slot = self.pool.put(one)
        if slot is None:
            assert self.held, "an empty ring takes whatever fits"
            return
        taken = set(range(slot, slot + rows))
        assert max(taken) < self.pool.slots
        assert not taken & self.held.keys(), "a slot that is in use was given away"
        self.held |= dict.fromkeys(taken, one.id)
        self.copying[one.id] = (one, slot)
        self.order.append(one.id)
        self.place[one.id], self.rows[one.id] = slot, rows

    @precondition(lambda self: self.copying)
    @rule(data=st.data())
    def copy(self, data: st.DataObject) -> None:
        one, slot = self.copying.pop(data.draw(st.sampled_from(sorted(self.copying))))
        waits = self.pool.copied(one, slot) is not None
        assert waits == (one.id in self.order)
        self.copied.add(one.id)
        self._let_go(one.id)

    @precondition(lambda self: self.pool.head is not None)
    @rule(limit=st.integers(1, 8))
    def launch(self, limit: int) -> None:
        expected_rows = self.pool.batch_rows(limit)
        slot, requests = self.pool.take(limit)
        assert [one.id for one in requests] == self.order[: len(requests)], "order of arrival"
        del self.order[: len(requests)]
        assert all(one.id in self.copied for one in requests)
        assert slot == self.place[requests[0].id]
        for one, other in pairwise(requests):
            assert self.place[one.id] + one.rows == self.place[other.id], "rows lie in a row"
        total = sum(one.rows for one in requests)
        assert total == expected_rows and (total <= limit or len(requests) == 1)
        self.running.append(requests)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.running) - 1))
        for one in self.running.pop(place):
            self.pool.ended(one)
            self.over.add(one.id)
            self._let_go(one.id)

    @precondition(lambda self: self.order)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(self.order))
        gone = self.pool.remove(number)
        assert gone is not None and gone.id == number
        assert self.pool.remove(number) is None
        self.order.remove(number)
        self.over.add(number)
        self._let_go(number)

    @invariant()
    def it_counts_what_waits(self) -> None:
        assert len(self.pool) == len(self.order)
        assert self.pool.waiting_rows == sum(self.rows[number] for number in self.order)
        assert self.pool.rows <= self.pool.waiting_rows

    def teardown(self) -> None:
        """Once everything has ended, the whole ring is there again."""
        if not hasattr(self, "pool"):
            return
        self.pool.clear()
        for one, slot in self.copying.values():
            self.pool.copied(one, slot)
        for requests in self.running:
            for one in requests:
                self.pool.ended(one)
        assert self.pool.put(request(self.number + 1, self.pool.slots)) == 0


PoolMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestPoolLaws = PoolMachine.TestCase


def _ready(pool: InputPool, *rows: int, first: int = 1) -> list[Request]:
    several = [request(first + index, count) for index, count in enumerate(rows)]
    for one in several:
        slot = pool.put(one)
        assert slot is not None
        pool.copied(one, slot)
    return several


def test_waiting_counts_only_up_to_the_end_of_the_ring() -> None:
    """Contiguous addresses end there (the published N-Ebird counts alike)."""
    pool = InputPool(8)
    early = _ready(pool, *[1] * 6)
    pool.take(6)
    for one in early[:4]:
        pool.ended(one)
    _ready(pool, *[1] * 5, first=10)  # slots 6, 7, then 0, 1, 2
    assert pool.waiting_rows == 5
    assert pool.rows == 2
    slot, requests = pool.take(5)
    assert (slot, len(requests)) == (6, 2)
    assert pool.rows == 3 and pool.take(5)[0] == 0


def test_the_last_copy_of_a_batch_decides_when_it_can_begin() -> None:
    """InEvents are in order (section 5.1): what is copied behind a gap does not count."""
    pool = InputPool(8)
    one, two, three = request(1), request(2), request(3)
    slots = [pool.put(each) for each in (one, two, three)]
    pool.copied(three, slots[2] or 0)
    assert pool.rows == 0 and pool.head is None and pool.first == one
    pool.copied(one, slots[0] or 0)
    assert pool.rows == 1
    pool.copied(two, slots[1] or 0)
    assert pool.rows == 3


def test_slots_are_freed_in_order() -> None:
    pool = InputPool(4)
    several = _ready(pool, 1, 1, 1, 1)
    pool.take(2)
    pool.take(2)
    pool.ended(several[2])
    pool.ended(several[3])
    assert not pool.room, "the oldest batch still runs"
    pool.ended(several[0])
    pool.ended(several[1])
    assert pool.room


def test_rows_that_do_not_fit_before_the_end_begin_at_the_start() -> None:
    pool = InputPool(8)
    several = _ready(pool, 3, 3)
    pool.take(3)
    pool.ended(several[0])
    late = request(9, 3)
    assert pool.put(late) == 0
    pool.copied(late, 0)
    assert pool.waiting_rows == 6
    assert pool.rows == 3, "a window does not reach over the skipped slots"


def test_what_a_ring_does_not_take() -> None:
    pool = InputPool(4)
    text = Tensor("x", BYTES, (1,), Span(1, 0, 5))
    assert not pool.fits(replace(request(1), inputs=(text,)))
    assert not pool.fits(request(1, rows=5))
    _ready(pool, 1)
    assert not pool.fits(request(2, shape="t"))
    pool.clear()
    assert pool.fits(request(2, shape="t")), "an empty ring takes any shape"


def test_large_rows_get_fewer_slots() -> None:
    pool = InputPool(128, 32)

    def picture(nbytes: int) -> Request:
        return replace(request(1), inputs=(Tensor("x", "UINT8", (1, nbytes), Span(1, 0, nbytes)),))

    for nbytes, slots in ((600_000, 128), (4 << 20, 64), (100 << 20, 32)):
        assert pool.fits(picture(nbytes))
        pool.put(picture(nbytes))
        assert pool.slots == slots
        pool.clear()
        pool.copied(picture(nbytes), 0)


def test_expiry_leaves_a_gap_until_it_is_passed() -> None:
    pool = InputPool(8)
    for number, deadline_ms in ((1, 50.0), (2, 10.0), (3, 50.0)):
        one = request(number, deadline_ms=deadline_ms)
        pool.copied(one, pool.put(one) or 0)
    assert pool.next_deadline_ms == 10.0
    assert [one.id for one in pool.expired(20.0)] == [2]
    assert pool.rows == 1, "rows of a batch lie in a row"
    assert [one.id for one in pool.take(8)[1]] == [1]
    assert [one.id for one in pool.take(8)[1]] == [3]
