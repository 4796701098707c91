"""Exhaustive search against brute force: every cut, every batch, every way to split a rate."""

import tracemalloc
from dataclasses import replace
from itertools import combinations_with_replacement, product

from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Plan
from interlace.core.profile import LatencyPoint, Profile
from interlace.perf.latency import surface
from interlace.policy.planners.ideal import Ideal

_SHARES = (50, 100)
_BATCHES = (0, 1, 2, 3)

Rates = tuple[float, ...]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Demand], dict[str, Profile]]:
    profiles, demand = {}, []
    for name in ("a", "b"):
        fixed, row = draw(st.floats(0.5, 5.0)), draw(st.floats(0.2, 4.0))
        narrow = draw(st.floats(1.0, 2.0))
        points = {
            (b, share): LatencyPoint(ms, ms, ms, 1)
            for share, slow in ((50, narrow), (100, 1.0))
            for b in _BATCHES[1:]
            if (ms := (fixed + row * b) * slow)
        }
        profiles[name] = Profile(name, "", "k", 1, 1, points)
        demand.append(Demand(name, draw(st.floats(10.0, 500.0)), draw(st.floats(8.0, 60.0)), 3))
    return demand, profiles


def _patterns(demand: list[Demand], profiles: dict[str, Profile], share: int) -> list[Rates]:
    """What a partition serves with each pair of batches: b / duty in the shortest cycle."""
    found = []
    for batches in product(_BATCHES, repeat=len(demand)):
        runs = {
            d.model: surface(profiles[d.model]).latency_ms(b, share)
            for d, b in zip(demand, batches, strict=True)
            if b
        }
        duty_ms = sum(runs.values())
        if all(duty_ms + runs.get(d.model, -duty_ms) <= d.slo_ms for d in demand):
            found.append(tuple(1000.0 * b / duty_ms if b else 0.0 for b in batches))
    return found


def _possible(demand: list[Demand], profiles: dict[str, Profile], rings: bool) -> bool:
    """True if one accelerator serves the demand, with or without plans that split both models."""
    halves = combinations_with_replacement(_patterns(demand, profiles, 50), 2)
    wholes = ((one,) for one in _patterns(demand, profiles, 100))
    for made in (*halves, *wholes):
        served = [sum(one[i] for one in made) for i in range(len(demand))]
        ring = len(made) == 2 and all(rate > 0 for one in made for rate in one)
        enough = all(s >= d.rows_per_s * (1 - 1e-9) for s, d in zip(served, demand, strict=True))
        if enough and (rings or not ring):
            return True
    return False


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_on_one_accelerator_the_search_finds_whatever_there_is(
    world: tuple[list[Demand], dict[str, Profile]],
) -> None:
    demand, profiles = world
    fleet = Fleet((Gpu("g", "k", 100, 1_000, _SHARES),))
    plan = Ideal()(demand, fleet, profiles, Plan())
    assert not plan.notes or "every way" in plan.notes[0]
    if plan.unserved_rows_per_s:
        assert not _possible(
            [replace(d, rows_per_s=d.rows_per_s * (1 + 1e-6)) for d in demand], profiles, False
        )
    else:
        assert _possible(
            [replace(d, rows_per_s=d.rows_per_s * (1 - 1e-6)) for d in demand], profiles, True
        )


def test_a_search_cut_short_says_so_and_still_serves_something() -> None:
    points = {
        (b, s): LatencyPoint(5.0 + b, 5.0 + b, 5.0 + b, 1) for s in _SHARES for b in (1, 2, 4, 8)
    }
    profiles = {f"m{i}": Profile(f"m{i}", "", "k", 1, 1, points) for i in range(9)}
    demand = [Demand(name, 60.0 + 7 * i, 50.0) for i, name in enumerate(profiles)]
    fleet = Fleet(tuple(Gpu(f"g{i}", "k", 100, 1_000, _SHARES) for i in range(1)))
    plan = Ideal(steps=5)(demand, fleet, profiles, Plan())
    assert plan.partitions and plan.unserved_rows_per_s
    assert plan.reasons.keys() == plan.unserved_rows_per_s.keys()


def test_memory_is_kept_even_where_time_would_do() -> None:
    points = {(b, s): LatencyPoint(1.0, 1.0, 1.0, 1) for s in _SHARES for b in (1, 2)}
    profiles = {name: Profile(name, "", "k", 600, 1, points) for name in ("a", "b")}
    demand = [Demand("a", 10.0, 50.0), Demand("b", 10.0, 50.0)]
    fleet = Fleet(tuple(Gpu(f"g{i}", "k", 100, 1_000, _SHARES) for i in range(2)))
    plan = Ideal()(demand, fleet, profiles, Plan())
    assert not plan.unserved_rows_per_s
    assert {p.gpu: [s.model for s in p.slots] for p in plan.partitions} in (
        {"g0": ["a"], "g1": ["b"]},
        {"g0": ["b"], "g1": ["a"]},
    )


def test_more_models_than_the_search_tries_are_refused_with_that_reason() -> None:
    points = {(b, s): LatencyPoint(1.0, 1.0, 1.0, 1) for s in _SHARES for b in (1, 2)}
    profiles = {f"m{i}": Profile(f"m{i}", "", "k", 1, 1, points) for i in range(4)}
    demand = [Demand(name, 10.0, 50.0) for name in profiles]
    fleet = Fleet((Gpu("g", "k", 100, 1_000, _SHARES),))
    plan = Ideal(models=3)(demand, fleet, profiles, Plan())
    assert plan.unserved_rows_per_s == dict.fromkeys(profiles, 10.0)
    assert (
        set(plan.reasons.values())
        == {*plan.notes}
        == {"exhaustive search: 4 models, it tries at most 3"}
    )


def test_cuts_are_made_one_at_a_time() -> None:
    """Of 64 accelerators and a hundred layouts there are more choices than fit any memory."""
    points = {
        (b, s): LatencyPoint(9.0 + b, 9.0 + b, 9.0 + b, 1) for s in range(5, 101, 5) for b in (1, 2)
    }
    profiles = {f"m{i}": Profile(f"m{i}", "", "k", 1, 1, points) for i in range(3)}
    demand = [Demand(name, 9_000.0, 50.0) for name in profiles]
    fleet = Fleet(tuple(Gpu(f"g{i}", "k", 100, 1_000, tuple(range(5, 101, 5))) for i in range(64)))
    tracemalloc.start()
    plan = Ideal(steps=2_000)(demand, fleet, profiles, Plan())
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert plan.partitions and most_bytes < 100_000_000
