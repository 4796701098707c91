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
        terms=SimpleNamespace(slo_ms=slo_ms),
        provisional=lambda: provisional,
    )


def test_an_slo_is_divided_by_work_and_the_tightest_counts() -> None:
    members = {name: model(name, {"X": (5,)}, {"Y": (5,)}) for name in ("first", "second")}
    prepared = {
        name: PreparedModel(members[name], line_profile(name, 0.0, row_ms), {})
        for name, row_ms in (("first", 10.0), ("second", 30.0))
    }
    drafts = cast(
        Any, [draft(400.0, FIRST, SECOND), draft(100.0, FIRST, SECOND), draft(1.0, FIRST)]
    )
    found = member_slos_ms(drafts, prepared)
    assert found[members["first"].key] == pytest.approx(25.0)
    assert found[members["second"].key] == pytest.approx(75.0)


def test_members_without_a_profile_are_planned_for_their_own_slo() -> None:
    assert member_slos_ms(cast(Any, [draft(400.0, FIRST, SECOND)]), {}) == {}
