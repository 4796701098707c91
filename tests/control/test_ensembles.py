"""The time that ensembles leave to their members."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from interlace.apps.runner import AppRuntime
from interlace.control.ensembles import Ensembles, ensemble_slo_ms, member_demands
from interlace.control.model_preparer import PreparedModel
from interlace.control.registry import VersionRegistry
from interlace.core.model import Format, Model, ServiceTerms
from interlace.server.model_table import ModelTable, ServedModel
from interlace.testing.worlds import line_profile
from tests.apps.test_graph import FIRST, GOOD, SECOND, draft, model


def prepared(fixed_ms: dict[str, float], row_ms: dict[str, float]) -> dict[str, PreparedModel]:
    found = {}
    for name, fixed in fixed_ms.items():
        member = model(name, {"X": (5,)}, {"Y": (5,)})
        found[name] = PreparedModel(member, line_profile(name, fixed, row_ms[name]), {})
    return found


def test_members_are_planned_for_what_the_tightest_ensemble_leaves_them() -> None:
    members = prepared({"first": 5.0, "second": 30.0}, {"first": 1.0, "second": 1.0})
    drafts = [
        draft(FIRST, SECOND, slo_ms=400.0),
        draft(FIRST, SECOND, slo_ms=100.0),
        draft(FIRST, slo_ms=1.0),
    ]
    found = member_demands(drafts, members)
    first, second = (found[one.model.key].slo_ms for one in members.values())
    assert first + second <= 100.0 + 1e-6
    assert first >= 0.6 * 6.0 and second >= 0.6 * 31.0
    assert second > first


def test_an_slo_that_no_split_keeps_is_divided_by_work() -> None:
    members = prepared({"first": 0.0, "second": 0.0}, {"first": 10.0, "second": 30.0})
    found = member_demands([draft(FIRST, SECOND, slo_ms=4.0)], members)
    assert [one.slo_ms for one in found.values()] == pytest.approx([1.0, 3.0])


def test_an_slo_that_nobody_set_is_as_long_as_that_of_the_slowest_member() -> None:
    members = prepared({"first": 5.0, "second": 5.0}, {"first": 1.0, "second": 1.0})
    slow = replace(members["second"].model, terms=ServiceTerms(3_000.0, slo_assumed=True))
    models = [members["first"].model, slow]
    stated = draft(FIRST, SECOND, slo_ms=100.0)
    assert ensemble_slo_ms(stated, models) == 100.0
    stated.terms = replace(stated.terms, slo_assumed=True)
    assert ensemble_slo_ms(stated, models) == 3_000.0
    assert ensemble_slo_ms(stated, [models[0], replace(slow, format=Format.PYTHON)]) == 60_000.0


def whole(name: str, assumed: bool) -> Any:
    """An ensemble that can be served, of an SLO of 100 ms."""
    found = draft(FIRST, SECOND)
    signature = found.provisional().signature
    found.name = name
    found.terms = replace(found.terms, slo_assumed=assumed)
    found.provisional = lambda: replace(model(name, {}, {}), signature=signature)
    return found


def test_an_ensemble_follows_the_assumed_slo_of_a_member_that_is_loaded_again() -> None:
    table, served = ModelTable(), dict[str, Model]()
    apps = SimpleNamespace(add=lambda app, made: served.update({made.name: made}))
    ensembles = Ensembles(cast(AppRuntime, apps), table, VersionRegistry())
    table.publish(ServedModel(GOOD["first"]))
    table.publish(ServedModel(GOOD["second"]))
    for one in (whole("stated", False), whole("assumed", True)):
        ensembles.serve(one, 0)
    slower = ServiceTerms(3_000.0, slo_assumed=True)
    table.publish(ServedModel(replace(GOOD["second"], generation=1, terms=slower)))
    ensembles.follow()
    assert {name: one.terms.slo_ms for name, one in served.items()} == {
        "stated": 100.0, "assumed": 3_000.0
    }  # fmt: skip
    assert table.resolve("assumed", "").model.terms.slo_ms == 3_000.0


def test_members_without_a_profile_are_planned_for_their_own_slo() -> None:
    assert member_demands([draft(FIRST, SECOND, slo_ms=400.0)], {}) == {}


def test_the_rates_of_ensembles_add_up() -> None:
    members = prepared({"first": 5.0, "second": 5.0}, {"first": 1.0, "second": 1.0})
    drafts = [draft(FIRST, SECOND, slo_ms=400.0, rate_rps=rate) for rate in (3.0, 4.0)]
    assert [one.rows_per_s for one in member_demands(drafts, members).values()] == [7.0, 7.0]
