"""Highest rates that are told and kept by trial."""

import pytest

from bench.planning import highest
from bench.planning.kept import PromiseCheck
from interlace.planning.scenario import Scenario


@pytest.mark.parametrize(("tells_rps", "keeps_rps"), [(105.0, 120.0), (110.0, 110.0)])
def test_what_is_told_and_what_some_plan_keeps_are_found_apart(
    tells_rps: float, keeps_rps: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def check(
        name: str, scenario: Scenario, seeds: int, seconds: float, chance: float
    ) -> PromiseCheck:
        (rate_rps,) = {one.rows_per_s for one in scenario.demand}
        asked.append(rate_rps)
        assert scenario.limit == 4 and {one.model for one in scenario.demand} == {"den", "vgg"}
        told, can = rate_rps <= tells_rps, rate_rps <= keeps_rps
        return PromiseCheck(name, 4, 4, told, told, can, "vgg", 1.0, 1.0, 0.0)

    monkeypatch.setattr(highest, "check", check)
    told, kept = highest.tried_rps("scen2", 4, 100.0)
    assert told <= tells_rps <= told * 1.02 and kept <= keeps_rps <= kept * 1.02
    assert len(asked) == len(set(asked)), "no rate is planned and played twice"
