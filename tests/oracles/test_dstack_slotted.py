"""The time-slotted ideal of D-STACK's section 6.2: its two equations, by hand and as laws."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.papers.dstack.slotted_schedule import Kernel, slotted

FAR = 1e9

kernels_of = st.lists(
    st.builds(Kernel, st.integers(5, 100).map(float), st.integers(1, 4).map(float)),
    min_size=1,
    max_size=4,
)
mixes = st.dictionaries(st.sampled_from("abcd"), kernels_of, min_size=1)


def test_one_model_runs_all_the_time() -> None:
    found = slotted({"a": [Kernel(30.0, 2.0), Kernel(50.0, 1.0)]}, {"a": 5.0}, 1.0, 30)
    assert found.ideal.rows_per_s["a"] == pytest.approx(1000.0 / 3.0)
    assert found.ideal.utilisation == pytest.approx((30 * 2 + 50) / 300)
    assert found.late == {"a": 0.0}


def test_the_fullest_set_is_taken_and_the_earliest_deadline_of_equal_ones() -> None:
    kernels = {"a": [Kernel(60.0, 1.0)], "b": [Kernel(50.0, 1.0)], "c": [Kernel(50.0, 1.0)]}
    full = slotted(kernels, dict.fromkeys("abc", FAR), 1.0, 4)
    assert [set(one) for one in full.chosen] == [{"b", "c"}] * 4
    tie = {"a": [Kernel(60.0, 1.0)], "b": [Kernel(60.0, 1.0)]}
    assert set(slotted(tie, {"a": FAR, "b": 50.0}, 1.0, 1).chosen[0]) == {"b"}


def test_who_cannot_wait_goes_before_who_fills_more() -> None:
    kernels = {"a": [Kernel(60.0, 1.0)], "b": [Kernel(50.0, 1.0)], "c": [Kernel(50.0, 1.0)]}
    found = slotted(kernels, {"a": 4.0, "b": 4.0, "c": 4.0}, 1.0, 400)
    assert set(found.late.values()) == {0.0}
    assert found.ideal.rows_per_s["a"] == pytest.approx(250.0, rel=0.05)  # once in its 4 ms


def test_kernels_are_preempted_between_slots() -> None:
    kernels = {"a": [Kernel(80.0, 10.0)], "b": [Kernel(80.0, 2.0)]}
    found = slotted(kernels, {"a": 20.0, "b": 4.0}, 1.0, 20)
    who = ["".join(one) for one in found.chosen]
    assert who[:2] == ["b", "b"] and "ab" in "".join(who)[2:]
    assert found.late["b"] == 0.0


@given(mixes)
def test_slots_hold_at_most_all_and_no_set_would_fill_more(
    kernels: dict[str, list[Kernel]],
) -> None:
    found = slotted(kernels, dict.fromkeys(kernels, FAR), 1.0, 40)
    at = dict.fromkeys(kernels, 0)
    left = {m: ones[0].run_ms for m, ones in kernels.items()}
    for chosen in found.chosen:
        wants = {m: kernels[m][at[m]].share_pct for m in kernels}
        best = max(
            used
            for size in range(1, len(wants) + 1)
            for one in combinations(wants, size)
            if (used := sum(wants[m] for m in one)) <= 100.0
        )
        assert sum(wants[m] for m in chosen) == pytest.approx(best)
        for model, kernel in chosen.items():
            assert kernel == at[model]  # equation 14: in order, each after the one before
            left[model] -= 1.0
            if left[model] <= 0:
                at[model] = (at[model] + 1) % len(kernels[model])
                left[model] = kernels[model][at[model]].run_ms


@given(mixes)
def test_rates_are_the_inferences_that_ended(kernels: dict[str, list[Kernel]]) -> None:
    found = slotted(kernels, dict.fromkeys(kernels, 30.0), 1.0, 60)
    for model, ones in kernels.items():
        slots = sum(model in one for one in found.chosen)
        whole = sum(one.run_ms for one in ones)
        assert found.ideal.rows_per_s[model] * 0.060 == pytest.approx(slots // whole)
        assert 0.0 <= found.late[model] <= 1.0


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one model"):
        slotted({}, {}, 0.1, 10)
    with pytest.raises(ValueError, match="shares in"):
        slotted({"a": [Kernel(101.0, 1.0)]}, {"a": 5.0}, 0.1, 10)
