"""How many machines a fleet should have."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from interlace.fleet.machine_scaling import MachineScaling


def play(work: float, machines: int, most: int, seconds: int = 3600) -> list[int]:
    """Machines each second, where ``work`` fills so many, and what is wanted comes at once."""
    found: list[int] = []
    scaling = MachineScaling(most)
    for second in range(seconds):
        machines = scaling.wanted(work / machines, machines, 1000.0 * second)
        found.append(machines)
    return found


@given(work=st.floats(0.0, 30.0), machines=st.integers(1, 20), most=st.integers(20, 40))
def test_work_that_stays_has_an_end_of_changes_and_fits(
    work: float, machines: int, most: int
) -> None:
    found = play(work, machines, most)
    assert len(set(found[1800:])) == 1
    assert all(1 <= count <= most for count in found)
    assert work / found[-1] <= 0.8 or found[-1] == most
    assert found[-1] == 1 or work / (found[-1] - 1) > 0.7 - 1e-6
    ups_and_downs = [b - a for a, b in zip([machines, *found], found, strict=False) if b != a]
    assert all(step > 0 for step in ups_and_downs) or all(step == -1 for step in ups_and_downs)


def test_a_moment_of_load_asks_for_nothing() -> None:
    scaling = MachineScaling(8, grow_after_ms=3_000.0)
    loads = [0.75, 2.0, 2.0, 0.75, 2.0, 0.75]
    assert [scaling.wanted(load, 4, 1000.0 * i) for i, load in enumerate(loads)] == [4] * 6


def test_growing_is_soon_and_at_once_and_shrinking_late_and_by_one() -> None:
    scaling = MachineScaling(8, grow_after_ms=3_000.0)
    assert [scaling.wanted(1.4, 2, 1000.0 * i) for i in range(4)] == [2, 2, 2, 4]
    found = [scaling.wanted(0.1, 4, 10_000.0 + 1000.0 * i) for i in range(62)]
    assert found == [4] * 60 + [3] + [4]
