"""What Python and notebooks show of results: a line, a table, a picture."""

from dataclasses import replace
from pathlib import Path

import pytest

import interlace

NINE = Path(__file__).parents[2] / "examples" / "planning" / "nine.toml"


def test_a_plan_is_a_line_a_table_and_a_picture(tmp_path: Path) -> None:
    found = interlace.plan(NINE, system="bestfit")
    assert repr(found).startswith("<CapacityPlan: 3 2080ti for 9 models by bestfit")
    assert len(repr(found)) < 200
    one = replace(found, scenario=replace(found.scenario, demand=found.scenario.demand[:1]))
    assert "for 1 model by" in repr(one)
    assert found._repr_html_().count("<tr>") == 10
    found.draw(tmp_path / "plan.svg")
    assert "vgg" in (tmp_path / "plan.svg").read_text()


def test_a_run_is_a_line_a_table_and_a_plot(tmp_path: Path) -> None:
    run = interlace.simulate(NINE, system="bestfit", seconds=1.0)
    assert f"{run.report.requests} requests" in repr(run)
    assert len(repr(run)) < 200
    assert run._repr_html_().count("<tr>") == 10
    run.plot("cdf", tmp_path / "cdf.svg")
    assert (tmp_path / "cdf.svg").stat().st_size > 1000
    with pytest.raises(interlace.InputError, match="expected one of cdf"):
        run.plot("pie", tmp_path / "pie.svg")
