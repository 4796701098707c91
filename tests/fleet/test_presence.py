"""When a controller gives a node up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from interlace.fleet.membership import LEAST_MS, MEMORY_MS, MOST_MS, Presence

NOBODY: frozenset[str] = frozenset()


def test_a_node_is_lost_after_its_patience_while_others_speak() -> None:
    judge = Presence()
    heard = {"a": 1000.0, "b": 1000.0}
    assert judge.lost(heard, NOBODY, 1000.0) == set()
    assert judge.lost({**heard, "b": 1790.0}, NOBODY, 1800.0) == set()
    assert judge.lost({**heard, "b": 1790.0}, NOBODY, 1801.0) == {"a"}


def test_a_node_that_refuses_connections_is_lost_at_once() -> None:
    assert Presence().lost({"a": 1000.0}, {"a", "unheard"}, 1000.0) == {"a"}


def test_nobody_is_lost_while_all_are_silent() -> None:
    judge = Presence()
    assert judge.lost({"a": 0.0, "b": 5.0}, NOBODY, 60_000.0) == set()
    assert judge.lost({"a": 0.0, "b": 60_000.0}, NOBODY, 60_000.0) == {"a"}


def test_a_node_that_survived_silence_is_given_more_until_that_is_long_ago() -> None:
    judge = Presence()
    for at_ms in (0.0, 700.0, 800.0):
        judge.lost({"a": at_ms}, NOBODY, at_ms)
    assert judge.patience_ms("a") == 1400.0
    judge.lost({"a": 2200.0}, NOBODY, 2200.0)
    assert judge.patience_ms("a") == 2800.0
    judge.lost({"a": 30_000.0}, NOBODY, 30_000.0)  # it was lost, and is back
    assert judge.patience_ms("a") == 2800.0
    for at_ms in range(30_100, 63_000, 100):
        judge.lost({"a": float(at_ms)}, NOBODY, float(at_ms))
    assert judge.patience_ms("a") == judge.patience_ms("b") == 800.0


def test_a_process_that_began_anew_is_not_blamed_for_the_one_before() -> None:
    judge = Presence()
    for at_ms in (0.0, 700.0):
        judge.lost({"a": at_ms}, NOBODY, at_ms)
    judge.lost({"a": 700.0}, {"a"}, 800.0)
    judge.lost({"a": 9000.0}, NOBODY, 9000.0)
    assert judge.patience_ms("a") == 800.0


@given(st.lists(st.floats(1.0, 5000.0), min_size=1, max_size=50))
def test_patience_is_that_of_the_longest_silence_within_memory(silences: list[float]) -> None:
    judge, now_ms = Presence(), 0.0
    judge.lost({"a": 0.0}, NOBODY, 0.0)
    ended: list[tuple[float, float]] = []
    for silence_ms in silences:
        before_ms, now_ms = now_ms, now_ms + silence_ms
        judge.lost({"a": now_ms}, NOBODY, now_ms)
        within = [ms for at, ms in ended if now_ms - at <= MEMORY_MS]
        patience_ms = min(max(LEAST_MS, 2.0 * max(within, default=0.0)), MOST_MS)
        if silence_ms <= patience_ms:
            ended.append((now_ms, now_ms - before_ms))
        longest = max((ms for at, ms in ended if now_ms - at <= MEMORY_MS), default=0.0)
        expected = min(max(LEAST_MS, 2.0 * longest), MOST_MS)
        assert judge.patience_ms("a") == expected


def test_a_node_that_left_is_forgotten() -> None:
    judge = Presence()
    judge.lost({"a": 0.0}, NOBODY, 0.0)
    judge.lost({"a": 2000.0}, NOBODY, 2000.0)
    judge.lost({}, NOBODY, 2000.0)
    assert judge.patience_ms("a") == 800.0
