"""Small worlds to check laws in: profiles of straight lines, machines, demands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from hypothesis import strategies as st

from interlace.core.hardware import Fleet, Gpu, Trait
from interlace.core.plan import Demand, Plan
from interlace.core.profile import LatencyPoint, Profile

SHARES: Final = (20, 40, 60, 80, 100)
#: New partitions may be made while old ones drain.
OVERLAP: Final = frozenset({Trait.OVERLAPPED_REORGANISATION})
#: An accelerator that can be cut freely in fifths.
FREE: Final = Gpu("", "k", 100, 2_000, SHARES)
#: Four blocks of 21 units and a rest that the whole alone has: 20 beside 80 does not fit.
BLOCKS: Final = replace(FREE, units=104, blocks=(4, 21))
#: The same where partitions may overlap, and a launch picks one.
LANES: Final = replace(BLOCKS, traits=frozenset({Trait.SHARE_AT_LAUNCH}))
#: As MIG's: not every set of at most 100 % is legal, and memory comes with the share.
SLICES: Final = replace(
    FREE,
    layouts=((20, 20, 40), (20, 60), (40, 40), (100,)),
    walls=((20, 500), (40, 900), (60, 1_200), (80, 1_600), (100, 2_000)),
)
#: Seven slices: 57 beside 42 is legal, 42 beside 57 and anything else is not.
SEVENTHS: Final = Gpu(
    id="",
    kind="k",
    units=7,
    memory_bytes=2_000,
    shares_pct=(14, 28, 42, 57, 100),
    layouts=((100,), (42, 57), (14, 28, 57), (28, 28, 42), (14, 14, 14, 14, 42)),
    walls=((14, 250), (28, 500), (42, 1_000), (57, 1_000), (100, 2_000)),
)


class PlanningCase(NamedTuple):
    """A question to a planner."""

    demand: list[Demand]
    fleet: Fleet
    profiles: dict[str, Profile]


@st.composite
def planning_cases(
    draw: st.DrawFn,
    kinds: Sequence[Gpu] = (FREE, BLOCKS, LANES, SLICES, SEVENTHS),
    models: int = 6,
    gpus: int = 3,
    least_rows_per_s: float = 0.0,
) -> PlanningCase:
    """Up to ``models`` models and ``gpus`` accelerators of one kind, some of it impossible."""
    kind = draw(st.sampled_from(kinds))
    names = [f"m{i}" for i in range(draw(st.integers(1, models)))]
    profiles = {
        name: scaled_profile(
            name,
            draw(st.floats(0.2, 20.0)),
            draw(st.floats(0.05, 5.0)),
            draw(st.integers(10, 100)),
            draw(st.integers(1, 1_200)),
            kind.shares_pct,
        )
        for name in names
    }
    demand = [
        Demand(name, draw(st.floats(least_rows_per_s, 500.0)), draw(st.floats(5.0, 400.0)))
        for name in names
    ]
    fleet = fleet_of(kind, draw(st.integers(1, gpus)))
    return PlanningCase(demand, fleet, profiles)


def fleet_of(kind: Gpu, count: int) -> Fleet:
    """Some accelerators of one kind: ``g0``, ``g1``, ..."""
    return Fleet(tuple(replace(kind, id=f"g{i}") for i in range(count)))


def scaled_profile(
    model: str,
    fixed_ms: float,
    row_ms: float,
    width_pct: int,
    weights_bytes: int,
    shares_pct: Sequence[int] = SHARES,
) -> Profile:
    """L(b, p) = (fixed + row b) max(1, width / p), at 1 to 32 rows and these shares p."""
    points = {}
    for share_pct in shares_pct:
        for batch in (1, 2, 4, 8, 16, 32):
            ms = (fixed_ms + row_ms * batch) * max(1.0, width_pct / share_pct)
            points[batch, share_pct] = LatencyPoint(ms, ms, ms, 5)
    return Profile(model, "d", "k", weights_bytes, 1, points)


def line_profile(
    model: str,
    fixed_ms: float = 2.0,
    row_ms: float = 1.0,
    *,
    speedup: float = 0.6,
    max_batch: int = 32,
    weights_bytes: int = 1_000,
) -> Profile:
    """L(b, 50 %) = fixed + b * row; at 100 % that times ``speedup``."""
    points = {}
    for share_pct, factor in ((50, 1.0), (100, speedup)):
        batch = 1
        while batch <= max_batch:
            ms = (fixed_ms + batch * row_ms) * factor
            points[(batch, share_pct)] = LatencyPoint(ms, ms, ms, 10)
            batch *= 2
    return Profile(model, "digest", "test", weights_bytes, 10, points, load_ms=5.0)


def machine(memory_bytes: int = 10**9, traits: frozenset[Trait] = OVERLAP) -> Fleet:
    """One accelerator of two units."""
    return Fleet((Gpu("g0", "test", 2, memory_bytes, (50, 100), traits),))


def served_rows_per_s(plan: Plan, model: str) -> float:
    """What a plan gives a model in all its partitions."""
    return sum(s.rows_per_s for p in plan.partitions for s in p.slots if s.model == model)


def unplannable(model: str = "m") -> list[Demand]:
    """Demands that no plan can meet; ``PROFILES_OF_ODD`` has the profiles of their models."""
    nan, inf = float("nan"), float("inf")
    rates = [Demand(model, rate, 50.0) for rate in (nan, -1.0, inf, 1e12)]
    slos = [Demand(model, 10.0, slo) for slo in (nan, inf, 0.0, -5.0, 1e-9, 0.5)]
    others = [Demand(name, 10.0, 50.0) for name in ("unknown", "unmeasured", "huge")]
    return [*rates, *slos, Demand(model, 10.0, 50.0, 0), *others]


GOOD: Final = scaled_profile("m", 1.0, 0.5, 50, 10)
PROFILES_OF_ODD: Final = {
    "m": GOOD,
    "fine": replace(GOOD, model="fine"),
    "unmeasured": replace(GOOD, model="unmeasured", points={}),
    "huge": replace(GOOD, model="huge", weights_bytes=10**9),
}
