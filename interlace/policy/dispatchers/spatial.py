"""Which lane, at launch: partitions that add up to more than the accelerator, used below it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from interlace.core.plan import Slot
from interlace.core.request import UNSTATED_PRIORITY, Request
from interlace.policy.base import Dispatcher
from interlace.policy.batching import given_up, rows_in_time
from interlace.policy.decision import Dispatch, Drop, Launch
from interlace.policy.fairness import due, famished, overdue_ms, owed_ms, starved
from interlace.policy.view import PartitionView, View, kept_room, start_ms

#: Who goes first of one stated priority: who is overdue a batch, or owed one; of whom many rows in
#: a row were lost, or a batch is due without an SLO; the rest.
_OVERDUE: Final = 0
_OWED: Final = 1
_FAMISHED: Final = 2
_STARVED: Final = 3
_REST: Final = 4
#: For this part of its slack a batch leaves room for models that could wait no longer than it runs.
_YIELDS: Final = 0.5
#: Sums of times that are equal on paper differ by less.
_ROUNDING_MS: Final = 1e-6
_NOTHING: Final = Dispatch()
#: A model that waits, with partitions and its slots there.
_Lanes = tuple[str, Sequence[tuple[PartitionView, Slot]]]


@dataclass(slots=True)
class _Use:
    """Room of the accelerator (``Gpu.room``) that a partition has until it ends, and its units."""

    until_ms: float
    room: int
    units: int
    partition: str


class _Busy:
    """What runs on one accelerator: each partition's use of it, and how much that is in all."""

    __slots__ = ("free", "units", "uses")

    def __init__(self, uses: Sequence[_Use], whole: int) -> None:
        self.uses = uses
        self.free = whole  #: room that nothing takes
        self.units = 0  #: bit i for each unit i in use
        for use in uses:
            self.free -= use.room
            self.units |= use.units

    def fits(self, place: PartitionView) -> bool:
        """True if a batch may begin there now, beside what runs elsewhere."""
        free, units = self.free, self.units
        if place.running is not None:
            units = 0
            for use in self.uses:
                if use.partition == place.id:
                    free += use.room
                else:
                    units |= use.units
        return place.room <= free and not place.units_mask & units


@dataclass(slots=True)
class _WaitingModel:
    """A model's head and the lanes that could run it now, the fastest first.

    ``latest_ms`` is when it must begin in the first of them, ``yields_ms`` until when it leaves
    room for tighter models. ``ahead_ms`` is less the lag of one that is owed a batch, else 0.
    """

    priority: int
    turn: int
    ahead_ms: float
    latest_ms: float
    model: str
    deadline_ms: float
    head: Request
    lanes: list[tuple[PartitionView, Slot]]
    yields_ms: float
    due: bool


class _Claims:
    """The claims at one decision: of models that find room, in order of service, and of others.

    Of models in ``begun`` a batch begins now; those in ``yielding`` left room for others.
    """

    def __init__(
        self, able: Sequence[_Lanes], blocked: Sequence[_Lanes], view: View, now_ms: float
    ):
        self.able = [_claim(name, places, view, now_ms) for name, places in able]
        if len(able) + len(blocked) > 1:
            _order(self.able, view)
        self.begun: set[str] = set()
        self.yielding: set[str] = set()
        self._every: list[_WaitingModel] | None = None
        self._blocked = blocked
        self._view = view
        self._now_ms = now_ms

    @property
    def every(self) -> Sequence[_WaitingModel]:
        """All of them. Most decisions begin nothing, so the others are not worked out before."""
        if self._every is None:
            blocked = [_claim(*lanes, self._view, self._now_ms) for lanes in self._blocked]
            _order(blocked, self._view)
            self._every = [*self.able, *blocked]
        return self._every


@dataclass(frozen=True, slots=True)
class ByRoom:
    """``cut`` where all partitions of the accelerator fit side by side, else ``overlapping``.

    They overlap where a plan says so (``Plan.overlapping``), and while one plan gives way to
    another (``PartitionView.rivals``).
    """

    cut: Dispatcher
    overlapping: Dispatcher

    def __call__(self, view: View, now_ms: float) -> Dispatch:
        fits = not view.partitions or len(view.partitions[0].rivals) <= 1
        return self.cut(view, now_ms) if fits else self.overlapping(view, now_ms)


def side_by_side(view: View, now_ms: float) -> Dispatch:
    """Stated priority, then the least time left to begin, as long as the accelerator has room.

    What runs at once never exceeds the accelerator, nor do two that run share a unit of it. A model
    takes the lane that ends its batch first, and of equals the one that takes least. One that finds
    no room waits, and the others pass it (EASY backfilling, Lifka 1995) only as long as it can
    still begin in time afterwards, if its deadline is before theirs. No batch begins in a lane in
    which it would be late. For the first half of its slack a batch leaves the room free that a
    model needs whose slack is shorter than the batch: once begun, it is not stopped. Of models that
    lose requests, one that is owed a batch comes first, then one that is starved; one that is
    overdue is not passed (``policy.fairness``).
    """
    whole = view.gpu.room
    busy = _Busy(_uses(view, now_ms), whole)
    able, blocked = _lanes(busy, view, now_ms)
    if not able:
        return _NOTHING
    claims = _Claims(able, blocked, view, now_ms)
    launches: list[Launch] = []
    drops: list[Drop] = []
    given: set[str] = set()
    wake_ms: float | None = None
    for claim in claims.able:
        found = _launch(claim, claims, busy, given, view, now_ms)
        if found is None:
            if claim.model in claims.yielding:
                wake_ms = min(claim.yields_ms, wake_ms or inf)
            continue
        launch, dropped, use = found
        claims.begun.add(claim.model)
        given.add(launch.partition)
        others = [one for one in busy.uses if one.partition != use.partition]
        busy = _Busy([*others, use], whole)
        launches.append(launch)
        if dropped:
            drops.append(Drop(launch.model, dropped))
    return Dispatch(tuple(launches), wake_ms, tuple(drops))


def _uses(view: View, now_ms: float) -> list[_Use]:
    return [_Use(max(p.free_at_ms, now_ms), p.room, p.units_mask, p.id) for p in view.running]


def _lanes(busy: _Busy, view: View, now_ms: float) -> tuple[list[_Lanes], list[_Lanes]]:
    """The models that wait, each with the lanes that take a batch now: with room for one, without.

    All are without if the accelerator is full.
    """
    able: list[_Lanes] = []
    blocked: list[_Lanes] = []
    if busy.free <= 0 and not view.gpu.ahead_ms:
        return able, blocked
    for name, hosts in view.waiting_lanes():
        taking = [lane for lane in hosts if lane[0].takes(now_ms)]
        if not taking:
            continue
        for place, _ in taking:
            if busy.fits(place):
                able.append((name, taking))
                break
        else:
            blocked.append((name, taking))
    return able, blocked


def _claim(
    name: str, places: Sequence[tuple[PartitionView, Slot]], view: View, now_ms: float
) -> _WaitingModel:
    queue, model = view.queue(name), view.model(name)
    head = queue.head
    assert head is not None, f"{name} waits with nothing queued"
    most = queue.batch_rows(max(model.demand.max_batch, head.rows))
    timed: list[tuple[float, int, str, PartitionView, Slot]] = []
    run_ms: dict[int, float] = {}  # by share, of lanes in which nothing runs: most have few
    for place, slot in places:
        share_pct, at_ms = place.share_pct, start_ms(place, now_ms)
        took_ms = run_ms.get(share_pct) if at_ms == now_ms else None
        if took_ms is None:
            rows = rows_in_time(most, model, head, share_pct, head.deadline_ms - at_ms)
            took_ms = model.latency_ms(rows, share_pct, head.shape) / rows * most
            if at_ms == now_ms:
                run_ms[share_pct] = took_ms
        timed.append((at_ms + took_ms, share_pct, place.id, place, slot))
    timed.sort(key=_by_end)
    first = timed[0][3]
    rows = rows_in_time(most, model, head, first.share_pct, head.deadline_ms - now_ms)
    latest_ms = head.deadline_ms - model.latency_ms(rows, first.share_pct, head.shape)
    level = head.priority or UNSTATED_PRIORITY
    ordered = [(one[3], one[4]) for one in timed]
    yields_ms = -inf  # a stated priority waits for nobody
    if level == UNSTATED_PRIORITY:
        yields_ms = head.arrived_ms + _YIELDS * (latest_ms - head.arrived_ms)
    in_turn = due(timed[0][4], model, head, first, now_ms)
    return _WaitingModel(
        level, _REST, 0.0, latest_ms, name, head.deadline_ms, head, ordered, yields_ms, in_turn
    )


def _by_end(one: tuple[float, int, str, PartitionView, Slot]) -> tuple[float, int, str]:
    return one[:3]


def _order(claims: list[_WaitingModel], view: View) -> None:
    """Sort claims by who is served first; one that is owed a batch is due before its priority."""
    claims.sort(key=_urgency)
    if not claims:
        return
    lags_ms = claims[0].lanes[0][0].lags_ms
    for claim in claims:
        slot, lag_ms = claim.lanes[0][1], lags_ms.get(claim.model, 0.0)
        lost_rows = view.model(claim.model).lost_rows
        if lag_ms >= owed_ms(slot):
            claim.turn = _OVERDUE if lag_ms >= overdue_ms(slot) else _OWED
            claim.ahead_ms, claim.yields_ms = -lag_ms, -inf
        elif claim.due or starved(slot, lost_rows):
            passed_by_none = claim.due or famished(slot, lost_rows)
            claim.turn = _FAMISHED if passed_by_none else _STARVED
            claim.yields_ms = -inf
    claims.sort(key=_urgency)


def _urgency(claim: _WaitingModel) -> tuple[int, int, float, float, str]:
    return claim.priority, claim.turn, claim.ahead_ms, claim.latest_ms, claim.model


def _launch(
    claim: _WaitingModel,
    claims: _Claims,
    busy: _Busy,
    given: set[str],
    view: View,
    now_ms: float,
) -> tuple[Launch, int, _Use] | None:
    """The batch that the claim may begin now, how many of its oldest are given up for it."""
    for place, slot in claim.lanes:
        if place.id in given or not busy.fits(place):
            continue
        # Whatever the batch, it is not shorter: most that yield are found so, and cost no more.
        if now_ms < claim.yields_ms and place.room + place.kept_room > busy.free:
            claims.yielding.add(claim.model)
            continue
        queue, model, head = view.queue(claim.model), view.model(claim.model), claim.head
        at_ms = start_ms(place, now_ms)
        limit = max(model.demand.max_batch, head.rows)
        dropped = given_up(slot, limit, limit, place, view, at_ms)
        rows = queue.batch_rows(limit) if not dropped else min(limit, queue.rows - dropped)
        budget_ms = queue.deadline_ms(dropped) - at_ms
        rows = rows_in_time(rows, model, head, place.share_pct, budget_ms)
        end_ms = at_ms + model.latency_ms(rows, place.share_pct, head.shape)
        if end_ms > queue.deadline_ms(dropped) + _ROUNDING_MS:
            continue  # too slow a lane: a faster one may have room in time
        use = _Use(end_ms, place.room, place.units_mask, place.id)
        if now_ms < claim.yields_ms and not _leaves_room(use, busy, place.tight, now_ms):
            claims.yielding.add(claim.model)
            continue
        if _passes(claim, claims, use, busy.uses, view, now_ms):
            return Launch(place.id, claim.model, rows), dropped, use
    return None


def _leaves_room(use: _Use, busy: _Busy, tight: Sequence[tuple[float, int]], now_ms: float) -> bool:
    """True if a model that cannot wait until the batch ends still finds room beside it."""
    return use.room + kept_room(tight, use.until_ms - now_ms) <= busy.free


def _passes(
    claim: _WaitingModel,
    claims: _Claims,
    use: _Use,
    uses: Sequence[_Use],
    view: View,
    now_ms: float,
) -> bool:
    """True if every claim of a nearer deadline that can begin in time still can afterwards.

    One that is overdue can begin no later than before; one that is only owed a batch may be passed.
    """
    before = sorted(uses, key=_by_use_end)
    after = [*(one for one in uses if one.partition != use.partition), use]
    after.sort(key=_by_use_end)
    for other in claims.every:
        if other is claim or other.model in claims.begun:
            continue
        if claim.priority <= other.priority and not _goes_before(other, claim):
            continue
        if other.turn in (_OWED, _STARVED):
            continue
        soonest_ms = _soonest_ms(other, before, view, now_ms)
        latest_ms = other.latest_ms if other.turn == _REST else soonest_ms
        if soonest_ms <= latest_ms < _soonest_ms(other, after, view, now_ms):
            return False
    return True


def _by_use_end(use: _Use) -> float:
    return use.until_ms


def _goes_before(one: _WaitingModel, other: _WaitingModel) -> bool:
    """What is owed a batch first, in its order; the others by deadline."""
    if min(one.turn, other.turn) < _REST:
        return (one.turn, one.ahead_ms, one.model) < (other.turn, other.ahead_ms, other.model)
    return one.deadline_ms < other.deadline_ms


def _soonest_ms(claim: _WaitingModel, uses: Sequence[_Use], view: View, now_ms: float) -> float:
    """When one of its lanes first has its room, if nothing else begins; ``uses`` by their end."""
    soonest_ms = now_ms
    for ended in range(len(uses)):
        left = _Busy(uses[ended:], view.gpu.room)
        if any(left.fits(place) for place, _ in claim.lanes):
            break
        soonest_ms = uses[ended].until_ms
    return soonest_ms
