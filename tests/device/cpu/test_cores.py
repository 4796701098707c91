"""Shares of cores: legal sizes, who gets which, and what the processor is called."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.device.cpu.cores import CoreAllocator, cpu_kind


@given(st.integers(1, 100))
def test_shares_are_whole_cores_in_order_up_to_all(total: int) -> None:
    cores = CoreAllocator(range(total))
    shares = cores.shares_pct
    assert list(shares) == sorted(set(shares))
    assert shares[-1] == 100
    for share in shares:
        granted = cores.grant(share)
        assert len(granted) * 100 // total == share
        cores.give_back(granted)


@given(st.integers(1, 32), st.data())
def test_what_fits_in_cores_fits_in_percent(total: int, data: st.DataObject) -> None:
    cores = CoreAllocator(range(total))
    left, used_pct = total, 0
    while left:
        count = data.draw(st.integers(1, left))
        used_pct += cores.shares_pct[count - 1]
        left -= count
    assert used_pct <= 100


def test_the_least_held_cores_are_granted() -> None:
    cores = CoreAllocator((4, 5, 6, 7))
    first = cores.grant(50)
    second = cores.grant(50)
    assert (first, second) == ((4, 5), (6, 7))
    assert cores.grant(25) == (4,)  # partitions may overlap
    cores.give_back(second)
    assert cores.grant(75) == (5, 6, 7)


def test_cores_are_shared_with_those_who_leave_rather_than_with_those_who_stay() -> None:
    cores = CoreAllocator((0, 1))
    stays, leaves = cores.grant(50), cores.grant(50)
    assert (stays, leaves) == ((0,), (1,))
    assert cores.grant(50, leaves) == leaves
    assert cores.grant(50, leaves) == stays  # nobody leaves twice


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"a share of 30 %: expected one of \[50, 100\]"):
        CoreAllocator((0, 1)).grant(30)
    with pytest.raises(ValueError, match="at least one, each once"):
        CoreAllocator(())
    with pytest.raises(ValueError, match="at least one, each once"):
        CoreAllocator((1, 1))


def test_the_kind_is_one_word_with_the_number_of_cores() -> None:
    assert re.fullmatch(r"cpu-[a-z0-9-]*[a-z0-9]-3c", cpu_kind(3))
