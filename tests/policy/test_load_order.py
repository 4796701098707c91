"""Which load is next: nothing that can be in time is late by it, and few are made."""

from hypothesis import example, given
from hypothesis import strategies as st

from interlace.policy.cold_policy import LoadOrder, WaitingLoad
from interlace.policy.cold_starts.catalog import COLD_POLICIES
from interlace.policy.load_order import by_deadline, first_come

orders = st.sampled_from([row.order for row in COLD_POLICIES.values()])


@st.composite
def waiting_loads(draw: st.DrawFn) -> list[WaitingLoad]:
    found = []
    for number in range(draw(st.integers(0, 5))):
        first, slo = float(draw(st.integers(0, 50))), float(draw(st.integers(1, 60)))
        link = float(draw(st.integers(1, 20)))
        end = link + draw(st.integers(0, 5))
        rate, evicts = float(draw(st.integers(0, 99))), draw(st.booleans())
        found.append(WaitingLoad(f"m{number}", first, first + slo, link, end, rate, evicts))
    return found


@given(orders, waiting_loads(), st.integers(50, 500))
def test_one_begins_or_a_later_time_is_named(
    order: LoadOrder, waiting: list[WaitingLoad], now_ms: int
) -> None:
    choice = order(waiting, now_ms)
    assert choice == order(waiting[::-1], now_ms)
    if not waiting:
        assert choice.model is None
    elif choice.model is None:
        assert choice.wake_ms is not None and choice.wake_ms > now_ms
        assert order(waiting, choice.wake_ms).model is not None
    else:
        assert choice.model in {one.model for one in waiting}


#: The last one waits for company; the link would be the second's for longer than it can wait.
_LONG_BESIDE_URGENT = [
    WaitingLoad("urgent", 0.0, 1.0, 1.0, 1.0, 0.0, False),
    WaitingLoad("long", 0.0, 37.0, 18.0, 18.0, 0.0, False),
    WaitingLoad("asked", 0.0, 19.0, 1.0, 1.0, 56.0, True),
]


@given(waiting_loads())
@example(_LONG_BESIDE_URGENT)
def test_waiting_for_company_makes_nothing_late(waiting: list[WaitingLoad]) -> None:
    """All that could be in time one after the other from the last arrival on, by deadline, is."""
    start_ms = max((one.first_arrival_ms for one in waiting), default=0.0)

    def served(order: LoadOrder) -> set[str]:
        left, now_ms, kept = list(waiting), start_ms, set()
        while left:
            choice = order(left, now_ms)
            if choice.model is None:
                assert choice.wake_ms is not None
                now_ms = choice.wake_ms
                continue
            one = next(load for load in left if load.model == choice.model)
            if now_ms + one.end_ms <= one.deadline_ms:
                kept.add(one.model)
            left.remove(one)
            now_ms += one.link_ms
        return kept

    eager = served(lambda loads, now: by_deadline([o._replace(evicts=False) for o in loads], now))
    if len(eager) == len(waiting):
        assert served(by_deadline) == eager


def test_a_b_a_a_c_is_served_as_a_a_a_b_c() -> None:
    """A load that others must leave for gathers requests, for half of the time that it has."""
    b = WaitingLoad("b", 0.0, 100.0, 10.0, 20.0, rate_rps=20.0, evicts=True)
    assert by_deadline([b], 5.0) == (None, 40.0)
    assert by_deadline([b], 40.0).model == "b"
    assert by_deadline([b._replace(evicts=False)], 5.0).model == "b"
    assert by_deadline([b._replace(rate_rps=1.0)], 5.0).model == "b"
    assert first_come([b], 0.0).model == "b"


def test_it_waits_no_longer_than_company_needs_to_come() -> None:
    """Who is asked often waits shortly, whatever time there is."""
    often = WaitingLoad("often", 0.0, 2000.0, 10.0, 20.0, rate_rps=50.0, evicts=True)
    assert by_deadline([often], 5.0) == (None, 25.0)
    assert by_deadline([often], 25.0).model == "often"


def test_what_is_late_in_any_case_comes_last_but_comes() -> None:
    late = WaitingLoad("late", 0.0, 10.0, 10.0, 20.0, 1.0, True)
    fresh = WaitingLoad("fresh", 30.0, 80.0, 10.0, 20.0, 1.0, True)
    assert by_deadline([late, fresh], 30.0).model == "fresh"
    assert by_deadline([late], 30.0).model == "late"
    assert by_deadline([late, fresh._replace(deadline_ms=99.0)], 41.0).model == "late"
