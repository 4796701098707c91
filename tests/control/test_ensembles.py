"""The time that ensembles leave to their members."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from interlace.control.ensembles import member_slos_ms
from interlace.control.model_preparer import PreparedModel
from interlace.repository.draft import declared_signature
from interlace.testing.worlds import line_profile
from tests.apps.test_graph import FIRST, SECOND, ensemble, model


def draft(slo_ms: float, *steps: str) -> Any:
    config = ensemble(*steps)
    provisional = SimpleNamespace(signature=declared_signature(config, 4))
    return SimpleNamespace(
        name="app",
        config=config,
        terms=SimpleNamespace(slo_ms=slo_ms, rate_rps=None),
        provisional=lambda: provisional,
    )


def test_members_are_planned_for_what_the_tightest_ensemble_leaves_them() -> None:
    members = {name: model(name, {"X": (5,)}, {"Y": (5,)}) for name in ("first", "second")}
    prepared = {
        name: PreparedModel(members[name], line_profile(name, fixed_ms, 1.0), {})
        for name, fixed_ms in (("first", 5.0), ("second", 30.0))
    }
    key = {name: members[name].key for name in members}
    drafts = cast(
        Any, [draft(400.0, FIRST, SECOND), draft(100.0, FIRST, SECOND), draft(1.0, FIRST)]
    )
    found = member_slos_ms(drafts, prepared)
    assert found[key["first"]] + found[key["second"]] <= 100.0 + 1e-6
    assert found[key["first"]] >= 0.6 * 6.0 and found[key["second"]] >= 0.6 * 31.0
    assert found[key["second"]] > found[key["first"]]


def test_an_slo_that_no_split_keeps_is_divided_by_work() -> None:
    members = {name: model(name, {"X": (5,)}, {"Y": (5,)}) for name in ("first", "second")}
    prepared = {
        name: PreparedModel(members[name], line_profile(name, 0.0, row_ms), {})
        for name, row_ms in (("first", 10.0), ("second", 30.0))
    }
    found = member_slos_ms(cast(Any, [draft(4.0, FIRST, SECOND)]), prepared)
    assert found[members["first"].key] == pytest.approx(1.0)
    assert found[members["second"].key] == pytest.approx(3.0)


def test_members_without_a_profile_are_planned_for_their_own_slo() -> None:
    assert member_slos_ms(cast(Any, [draft(400.0, FIRST, SECOND)]), {}) == {}
