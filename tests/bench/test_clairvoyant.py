"""The clairvoyant optimum against trying everything, and no dispatcher above it."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba", reason="numba is not installed: the optimum is compiled")

from bench.clairvoyant.optimum import fewest_drops
from bench.clairvoyant.worlds import SLO_MS, World, gaps
from interlace.core.request import Outcome
from interlace.policy.catalog import resolve

WORLD = World(0.05, 0.3)
ROW_MS, FIXED_MS = WORLD.row * SLO_MS, WORLD.fixed * SLO_MS


def _tried(times_ms: tuple[float, ...]) -> int:
    """Every choice of whom to give up and where to cut the rest into batches."""

    @cache
    def most(first: int, free_ms: float) -> int:
        if first == len(times_ms):
            return 0
        best = most(first + 1, free_ms)
        members: list[int] = []

        def extend(place: int) -> None:
            nonlocal best
            if members:
                start_ms = max(free_ms, times_ms[members[-1]])
                end_ms = start_ms + FIXED_MS + len(members) * ROW_MS
                if end_ms <= times_ms[members[0]] + SLO_MS:
                    best = max(best, len(members) + most(members[-1] + 1, end_ms))
            for later in range(place, len(times_ms)):
                members.append(later)
                extend(later + 1)
                members.pop()

        members.append(first)
        extend(first + 1)
        return best

    return len(times_ms) - most(0, 0.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.0, 40.0), min_size=1, max_size=7))
def test_the_program_finds_what_trying_everything_finds(steps: list[float]) -> None:
    times_ms = tuple(np.cumsum(steps).tolist())
    found = fewest_drops(np.array(times_ms), ROW_MS, FIXED_MS, SLO_MS, len(times_ms))
    assert found == _tried(times_ms)


@pytest.mark.parametrize("load", [0.2, 0.5, 0.9, 1.5])
@pytest.mark.parametrize("name", ["interlace", "gpulet", "temporal"])
def test_nobody_serves_more_than_who_knows_the_future(name: str, load: float) -> None:
    drawn = gaps(800, 1)
    times_ms = np.cumsum(drawn) * 1000.0 / (load * WORLD.ceiling_rps)
    fewest = fewest_drops(times_ms, ROW_MS, FIXED_MS, SLO_MS, 800)
    assert WORLD.served(resolve(name), drawn, load)[Outcome.OK] <= 800 - fewest
