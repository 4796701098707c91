"""Laws of every eviction, and who goes first by age and by worth."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.policy.cold_policy import Eviction, Holding
from interlace.policy.cold_starts.catalog import COLD_POLICIES
from interlace.policy.load_order import by_worth, least_recently_used
from tests.policy.cold_starts.holdings import Held, held_models, whole

evictions = st.sampled_from([row.eviction for row in COLD_POLICIES.values()])


def freed_bytes(holdings: Sequence[Holding], gone: Sequence[tuple[str, tuple[int, ...]]]) -> int:
    curves = {one.model: one.curve for one in holdings}
    return sum(curves[model].nbytes(layers) for model, layers in gone)


@given(evictions, held_models(), st.integers(0, 40_000))
def test_enough_leaves_if_it_can_and_only_what_is_there_and_may(
    eviction: Eviction, holdings: list[Holding], need_bytes: int
) -> None:
    gone = eviction(need_bytes, holdings, 9.0)
    assert gone == eviction(need_bytes, holdings[::-1], 9.0)
    left = {one.model: set(one.held) for one in holdings}
    may = {one.model for one in holdings if one.may_leave}
    for model, layers in gone:
        assert model in may and layers and left[model].issuperset(layers)
        left[model].difference_update(layers)
    possible = sum(one.curve.nbytes(sorted(one.held)) for one in holdings if one.may_leave)
    assert freed_bytes(holdings, gone) >= min(need_bytes, possible)
    if need_bytes == 0:
        assert not gone


@given(held_models(), st.integers(1, 40_000))
def test_by_worth_no_part_goes_that_need_not(holdings: list[Holding], need_bytes: int) -> None:
    gone = by_worth(need_bytes, holdings, 9.0)
    freed = freed_bytes(holdings, gone)
    last = {model: number for number, (model, _) in enumerate(gone)}
    for number in last.values():  # what went of a model before its last part had to go before it
        without = freed - freed_bytes(holdings, [gone[number]])
        assert without < need_bytes


def test_the_longest_idle_goes_whole() -> None:
    three = [whole("b", last_start_ms=2.0), whole("a", last_start_ms=1.0), whole("c", 9.0)]
    assert [model for model, _ in least_recently_used(801, three, 9.0)] == ["c", "a"]
    assert least_recently_used(1, three[:2], 9.0) == [("a", tuple(range(8)))]


def test_the_popular_stay_whole_and_those_alike_lose_equal_parts() -> None:
    alike = [whole("a"), whole("b"), whole("c", rate_rps=3.0)]
    gone = by_worth(600, alike, 9.0)
    assert {model for model, _ in gone} == {"a", "b"}
    assert freed_bytes(alike, [one for one in gone if one[0] == "a"]) == 300
    # What is left is what a load copies first: the copies behind it hide behind execution.
    assert sorted(index for model, layers in gone if model == "a" for index in layers) == [5, 6, 7]
    assert {model for model, _ in by_worth(100, [whole("a"), whole("z", 0.1)], 9.0)} == {"z"}


@pytest.mark.parametrize("skew", [0.0, 0.9])
def test_what_left_is_not_worth_more_than_what_stays(skew: float) -> None:
    """Load after load of models drawn by a Zipf law, in a third of the memory: nothing thrashes."""
    drawn = Random(3)
    rates = [(place + 1) ** -skew for place in range(30)]
    models = {
        f"m{n}": whole(f"m{n}", rate).without(tuple(range(8))) for n, rate in enumerate(rates)
    }
    used, moved, asked = 0, 0, 4000
    for name in drawn.choices(
        sorted(models), [models[n].rate_rps for n in sorted(models)], k=asked
    ):
        one = models[name]
        need = 800 - one.curve.nbytes(sorted(one.held))
        others = [other for other in models.values() if other is not one]
        for model, layers in by_worth(used + need - 8000, others, 0.0):
            models[model] = models[model].without(layers)
            used -= 100 * len(layers)
        models[name] = Held(name, one.curve, frozenset(range(8)), one.rate_rps)
        used, moved = used + need, moved + need
    assert used <= 8000
    best = sum(sorted(rates)[:20]) / sum(rates) * 800 * asked
    assert moved <= 1.08 * best
