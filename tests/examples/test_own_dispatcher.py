"""A dispatcher in one file outside the package: its laws, its row, its log and its plans."""

import json
from pathlib import Path

import pytest

from interlace.core.messages import SolvePlan
from interlace.core.plan import Demand, Plan
from interlace.core.user_errors import InputError
from interlace.policy.catalog import resolve
from interlace.runtime.plan_solver import PlanningProcess, unsendable
from interlace.testing import laws_of
from interlace.testing.worlds import line_profile, machine
from tests.cli.planning import printed

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAME = "own_dispatcher:SYSTEM"
#: Its planners are those of the package, whose laws are checked in ``tests/laws``.
LAWS = [one for one in laws_of(resolve(NAME)) if "plan" not in one.name and "pack" not in one.name]


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_it_keeps_its_laws(law: object) -> None:
    law(resolve(NAME))  # type: ignore[operator]


def test_it_has_its_row_and_its_log_is_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(EXAMPLES)
    scenario = str(EXAMPLES / "simulation" / "evening.toml")
    words = ["simulate", scenario, "--seconds", "2", "--gpus", "1"]
    rows = json.loads(printed(*words, "--systems", f"interlace,{NAME}", "--json"))
    assert [row["system"] for row in rows] == ["interlace", NAME]
    log = str(tmp_path / "run.log")
    printed(*words, "--system", NAME, "--log", log)
    with pytest.raises(InputError, match="names code"):
        printed("replay", log)
    assert "same commands at every event" in printed("replay", log, "--system", NAME)


_PLANNER = """
from dataclasses import replace
from interlace.core.plan import Partition, Plan, Slot
from interlace.policy.catalog import resolve

def halves(demand, fleet, profiles, current):
    return Plan((Partition("left", "g0", 50, (Slot("m", 3, 10.0),)),))

SYSTEM = replace(resolve("gpulet"), planner=halves)
CLOSED = replace(SYSTEM, planner=lambda *asked: halves(*asked))
"""


def test_the_planning_process_loads_planners_from_the_folder_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "planner_of_a_test.py").write_text(_PLANNER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    demand = (Demand("m", 10.0, 50.0),)
    question = SolvePlan(1, demand, Plan(), {"m": line_profile("m")}, machine())
    solved = PlanningProcess().solve(resolve("planner_of_a_test:SYSTEM"), question)
    assert solved.failure is None
    assert [p.id for p in solved.plan.partitions] == ["left"]
    closed = resolve("planner_of_a_test:CLOSED")
    assert "at the top level of a module" in str(unsendable(closed))
    assert PlanningProcess().solve(closed, question).failure == unsendable(closed)
