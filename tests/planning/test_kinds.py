"""Several kinds of accelerators: cost against the bound and against each kind alone."""

from dataclasses import replace
from math import isfinite
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interlace.core.plan import Demand
from interlace.core.user_errors import InputError
from interlace.planning.capacity_plan import plan
from interlace.planning.kinds import plan_kinds
from interlace.planning.scenario import Scenario, read_scenario
from interlace.policy.catalog import resolve
from interlace.testing.worlds import FREE, line_profile

KINDS = Path(__file__).parents[2] / "examples" / "planning" / "kinds.toml"
NEXUS = resolve("nexus")  # quick, and played as it packs

_RATE = st.floats(1.0, 400.0)
_SLO_MS = st.floats(20.0, 200.0)
_FASTER = st.floats(0.3, 4.0)
_PRICE = st.floats(0.2, 5.0)


def scenario(kind: str, price: float, faster: list[float], demand: tuple[Demand, ...]) -> Scenario:
    profiles = {
        one.model: line_profile(one.model, 4.0 / factor, 1.0 / factor)
        for one, factor in zip(demand, faster, strict=True)
    }
    gpu = replace(FREE, id="", kind=kind)
    return Scenario(demand, gpu, profiles, limit=64, price_per_hour=price)


@st.composite
def questions(draw: st.DrawFn, equal: bool = False) -> list[Scenario]:
    """The same models on two or three kinds, each model faster on some; or one kind twice."""
    count = draw(st.integers(1, 4))
    demand = tuple(Demand(f"m{i}", draw(_RATE), draw(_SLO_MS)) for i in range(count))
    kinds = 2 if equal else draw(st.integers(2, 3))
    faster = [[draw(_FASTER) for _ in demand] for _ in range(kinds)]
    return [
        scenario(f"k{i}", 1.0 if equal else draw(_PRICE), faster[0 if equal else i], demand)
        for i in range(kinds)
    ]


_FEW = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))


@given(asked=questions())
@_FEW
def test_never_dearer_than_one_kind_and_never_below_the_bound(asked: list[Scenario]) -> None:
    found = plan_kinds(asked, NEXUS)
    best = min(found.alone_per_hour.values())
    if isfinite(best):
        assert found.kept
        assert found.cost_per_hour <= best + 1e-9
    if found.kept:
        assert found.cost_per_hour >= found.bound_per_hour - 1e-6
        planned = {d.model for part in found.parts for d in part.scenario.demand}
        assert planned == {one.model for one in asked[0].demand}
    for one in asked:
        alone = plan(one, system=NEXUS)
        if alone.kept:
            assert found.alone_per_hour[one.gpu.kind] == alone.cost_per_hour


@given(asked=questions(equal=True))
@_FEW
def test_of_equal_kinds_as_many_are_used_as_of_one(asked: list[Scenario]) -> None:
    found = plan_kinds(asked, NEXUS)
    alone = plan(asked[0], system=NEXUS)
    assert sum(part.gpus for part in found.parts) == alone.gpus
    assert found.kept == alone.kept


def test_kinds_that_differ_in_price_per_work_cost_at_most_four_fifths_together() -> None:
    found = plan_kinds(
        [read_scenario(KINDS, kind) for kind in ("2080ti", "a100")], resolve("interlace")
    )
    best = min(found.alone_per_hour.values())
    assert isfinite(best) and len(found.parts) == 2
    assert found.bound_per_hour <= found.cost_per_hour <= 0.8 * best


def test_a_kind_without_a_price_is_named() -> None:
    asked = [read_scenario(KINDS, kind) for kind in ("2080ti", "a100")]
    with pytest.raises(InputError, match=r"a100 has no price.*--price a100=USD"):
        plan_kinds([asked[0], replace(asked[1], price_per_hour=None)], NEXUS)


def test_a_kind_may_know_nothing_of_a_model_or_have_none_that_is_asked_for() -> None:
    slow, fast = (read_scenario(KINDS, kind) for kind in ("2080ti", "a100"))
    names = {one.model: one for one in slow.demand}
    asked = (replace(names["mob"], rows_per_s=0.0), names["goo"], names["den"])
    known = {model: one for model, one in slow.profiles.items() if model != "den"}
    first = replace(slow, demand=asked, profiles=known)
    found = plan_kinds([first, replace(fast, demand=asked)], resolve("interlace"))
    assert found.kept
    served = {m for part in found.parts for m in part.trial.models}
    assert served == {"goo", "den"}
