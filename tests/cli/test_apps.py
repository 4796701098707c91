"""Apps in scenarios: planned by stage, played as whole requests, their stages told by replay."""

import json
from pathlib import Path

import pytest

from tests.cli.planning import SCENARIO, Question, printed

APP = """
[apps.pair]
rate_rps = 20
slo_ms = 300
split = "SPLIT"
stages.find = { model = "small" }
stages.each = { model = "large", after = ["find"], rows = 2 }
"""
ONLY_APPS = SCENARIO[: SCENARIO.index("[models.small]")]


def question(folder: Path, split: str = "exact", before: str = SCENARIO) -> Question:
    return Question(folder, before + APP.replace("SPLIT", split))


def test_stages_add_to_their_models_and_a_table_shows_the_split(tmp_path: Path) -> None:
    one = question(tmp_path)
    said = one.plan("--json").json
    find, each = (said["apps"]["pair"][stage] for stage in ("find", "each"))
    assert (find["rows_per_s"], each["rows_per_s"]) == (20.0, 40.0)
    assert find["budget_ms"] + each["budget_ms"] == pytest.approx(300.0)
    assert find["cost"] >= find["bound"] > 0.0 and each["cost"] > find["cost"]
    rates = {name: one["rate_rps"] for name, one in said["models"].items()}
    assert rates == {"small": 120.0, "large": 90.0}
    assert said["models"]["small"]["slo_ms"] == 40.0, "its own, which is shorter"
    assert said["models"]["large"]["slo_ms"] == min(200.0, each["budget_ms"])
    out = one.plan().out
    assert "budget ms" in out and "bound GPUs" in out and " pair " in out


def test_a_plan_is_tried_with_whole_requests_of_apps(tmp_path: Path) -> None:
    said = question(tmp_path, before=ONLY_APPS).plan("--json").json
    pair = said["apps_tried"]["pair"]
    assert pair["sent"] == said["trial"]["requests"] > 1_000, "stages are no requests"
    assert 0.99 <= pair["attainment"] <= 1.0 and 0.0 < pair["p99_ms"] <= 300.0
    assert said["models"]["large"]["attainment"] is None
    assert any("pair is worst, " in one for one in said["said"])


def test_what_would_help_an_app_is_said_of_the_app(tmp_path: Path) -> None:
    app = APP.replace("SPLIT", "exact").replace("300", "70")
    said = Question(tmp_path, ONLY_APPS.replace("gpus = 8", "gpus = 1") + app).plan()
    assert said.code == 3
    assert "it would be kept within " in said.out


def test_options_and_rules_change_the_split(tmp_path: Path) -> None:
    equal = question(tmp_path, "equal", ONLY_APPS)
    said = equal.plan("--json", "--rate", "pair=40", "--slo", "pair=200").json
    assert [one["budget_ms"] for one in said["apps"]["pair"].values()] == [100.0, 100.0]
    assert {name: one["rate_rps"] for name, one in said["models"].items()} == {
        "small": 40.0,
        "large": 80.0,
    }
    assert "has no model 'small'" in equal.refused("--rate", "small=3")


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ('"large", after', '"lrge", after', "apps.pair.stages.each.model: 'lrge' has no profile"),
        ('["find"]', '["each"]', "s.toml: apps.pair.stages: the stages go in a circle"),
        ("[apps.pair]", "[apps.small]", "apps.small: there is a model of that name"),
        ("SPLIT", "halves", "apps.pair.split is 'halves'; expected one of equal, exact"),
    ],
)
def test_wrong_apps_are_named(tmp_path: Path, old: str, new: str, error: str) -> None:
    text = SCENARIO + APP.replace(old, new).replace("SPLIT", "exact")
    assert error in Question(tmp_path, text).refused()


def test_whole_requests_are_played_and_their_stages_told(tmp_path: Path) -> None:
    question(tmp_path, before=ONLY_APPS)
    (path,) = tmp_path.glob("*.toml")
    log = tmp_path / "events.log"
    (found,) = json.loads(
        printed("simulate", str(path), "--seconds", "3", "--log", str(log), "--json")
    )
    app = found["report"]["apps"]["pair"]
    assert app["requests"] > 30 and app["attainment"] == 1.0
    assert found["report"]["models"]["large"]["requests"] == app["requests"]
    assert " pair " in printed("simulate", str(path), "--seconds", "1")
    told = printed("replay", str(log), "--request", "1").splitlines()
    assert "request 1 of pair/1#0 arrives; to be answered by" in told[0]
    assert [line.split(": ")[1].split(",")[0] for line in told[1:]] == ["stage find", "stage each"]
    assert "of slack" in told[1] and "in a batch of 2 rows" in told[2]
    assert "it is stage find of request 1 of pair/1#0" in printed(
        "replay", str(log), "--request", "2"
    )


def test_a_simulated_fleet_plays_apps_on_nodes_that_have_all_their_models(tmp_path: Path) -> None:
    path = str(question(tmp_path, before=ONLY_APPS).path)
    found = json.loads(
        printed("fleet", "simulate", path, "--nodes", "2", "--seconds", "3", "--json")
    )
    assert found["requests"] > 30 and found["attainment"] == 1.0
