"""The lattice search: sums of closed sets, and agreement with the exhaustive planner."""

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.planning.lattice import Lattice, closed, doubled, maximal, total
from interlace.core.gpu_kinds import uniform_fleet
from interlace.core.hardware import Gpu
from interlace.core.plan import Demand, Plan
from interlace.core.profile import LatencyPoint, Profile
from interlace.policy.planners.ideal import Ideal

GPU = Gpu("", "k", 10, 10**9, (20, 50, 80, 100), layouts=((20, 80), (50, 50), (100,)))


def _profile(name: str, fixed_ms: float, row_ms: float, width_pct: float) -> Profile:
    points = {}
    for share, batch in product(GPU.shares_pct, (1, 2, 4, 8, 16, 32)):
        ms = (fixed_ms + row_ms * batch) * max(1.0, width_pct / share)
        points[batch, share] = LatencyPoint(ms, ms, ms, 1)
    return Profile(name, "d", "k", 1, 1, points)


sets = st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=6)


@given(sets, sets)
def test_a_total_holds_every_sum_and_nothing_above_one(
    one: list[tuple[int, ...]], other: list[tuple[int, ...]]
) -> None:
    first, second = np.zeros((4, 4, 4), bool), np.zeros((4, 4, 4), bool)
    for vector in one:
        first[vector] = True
    for vector in other:
        second[vector] = True
    first, second = closed(first), closed(second)
    sums = {tuple(a + b for a, b in zip(u, v, strict=True)) for u in one for v in other}
    found = total(first, second)
    for vector in product(range(4), repeat=3):
        below = any(all(x <= y for x, y in zip(vector, top, strict=True)) for top in sums)
        assert bool(found[vector]) == below
    assert (closed(np.where(_only(found), found, False)) == found).all()


def _only(members: np.ndarray) -> np.ndarray:
    corners = np.zeros_like(members)
    for corner in maximal(members):
        corners[tuple(corner)] = True
    return corners


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_what_the_lattice_finds_on_two_accelerators_exhaustive_search_finds_too(
    data: st.DataObject,
) -> None:
    names = ("a", "b", "c")
    profiles = {
        name: _profile(
            name,
            data.draw(st.floats(0.5, 8.0)),
            data.draw(st.floats(0.1, 2.0)),
            data.draw(st.floats(20.0, 100.0)),
        )
        for name in names
    }
    top = [
        Demand(name, data.draw(st.floats(50.0, 600.0)), data.draw(st.floats(20.0, 120.0)))
        for name in names
    ]
    lattice = Lattice(top, profiles, 2)
    two = doubled(lattice.accelerator(GPU), 1)
    for corner in maximal(two)[:2]:
        wanted = [
            Demand(one.model, one.rows_per_s * int(count) / 2, one.slo_ms)
            for one, count in zip(top, corner, strict=True)
            if count
        ]
        plan = Ideal()(wanted, uniform_fleet(GPU, 2), profiles, Plan())
        assert not plan.unserved_rows_per_s or any("every way" not in note for note in plan.notes)
