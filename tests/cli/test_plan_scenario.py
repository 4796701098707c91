"""`interlace plan SCENARIO.toml`: plan, bound, reasons, and clear words for the rest."""

import sys
from pathlib import Path

import pytest

from interlace.cli import main as entry
from interlace.perf.interference import CoRunner
from interlace.profiling.corun import CoRun, save_coruns
from tests.cli.planning import SCENARIO, Question


@pytest.fixture
def question(tmp_path: Path) -> Question:
    return Question(tmp_path)


#: Rates for which GPUs are cut, so that there are neighbours.
SEVERAL = ("--rate", "small=800", "--rate", "large=100")


def test_plan_serves_all_above_its_bound_and_the_table_says_so(question: Question) -> None:
    said = question.plan("--json").json
    assert said["unserved_rows_per_s"] == {}
    assert 1 <= said["lower_bound"]["gpus"] <= said["gpus"] <= 8
    assert said["gap"] == said["gpus"] / said["lower_bound"]["gpus"]
    assert said["cost_per_hour"] == said["gpus"] * 0.5
    slots = [slot for part in said["partitions"] for slot in part["slots"]]
    for model, asked in said["models"].items():
        assert asked["attainment"] >= 0.99
        assert asked["p99_ms"] <= asked["slo_ms"]
        assert asked["price_gpus_per_rps"] > 0
        planned = sum(slot["rows_per_s"] for slot in slots if slot["model"] == model)
        assert planned == pytest.approx(asked["rate_rps"], rel=1e-3)
    text = question.plan().out
    assert f"{said['gpus']} 2080ti (interlace" in text
    assert f"no scheduler needs fewer than {said['lower_bound']['gpus']}" in text
    assert f"{said['cost_per_hour']:.2f} an hour" in text


def test_options_stand_above_the_file(question: Question) -> None:
    more = question.plan("--json", "--rate", "small=1800", "--slo", "large=400").json
    assert more["models"]["small"]["rate_rps"] == 1800
    assert more["models"]["large"]["slo_ms"] == 400
    assert more["gpus"] > question.plan("--json").json["gpus"]
    priced = question.plan("--json", "--price", "2080ti=3").json
    assert priced["cost_per_hour"] == 3 * priced["gpus"]


def test_impossible_slo_is_unserved_with_its_reason(question: Question) -> None:
    said = question.plan("--json", "--slo", "large=5").json
    assert said["unserved_rows_per_s"] == {"large": 50.0}
    assert "SLO" in said["reasons"]["large"]
    assert said["gap"] is None
    assert "not served: 50 requests/s of large" in question.plan("--slo", "large=5").out


def test_limit_of_gpus_is_kept(tmp_path: Path) -> None:
    said = Question(tmp_path, SCENARIO.replace("gpus = 8", "gpus = 1")).plan(
        "--json", "--rate", "large=2000"
    )
    assert said.json["gpus"] <= 1
    assert said.json["unserved_rows_per_s"]["large"] > 0
    assert said.json["reasons"]["large"]


def test_explanation_has_every_figure(question: Question) -> None:
    text = question.plan("--explain", "large").out
    for words in ("at  20 %:", "at 100 %:", "run within the SLO", "in batches of up to"):
        assert words in text
    assert "requests in time (" in text
    assert "GPUs for every 100 requests/s more" in text


def test_model_without_profile_is_unserved_with_its_reason(tmp_path: Path) -> None:
    text = f"{SCENARIO}[models.stranger]\nrate_rps = 5\nslo_ms = 50\n"
    said = Question(tmp_path, text).plan("--json").json
    assert said["unserved_rows_per_s"] == {"stranger": 5.0}
    assert "profile" in said["reasons"]["stranger"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--rate", "small=nan"), "--rate small is nan"),
        (("--rate", "small=-1"), "--rate small is -1"),
        (("--rate", "small=inf"), "--rate small is inf"),
        (("--rate", "small=x"), "'x' is not a number"),
        (("--rate", "smal=4"), "did you mean small?"),
        (("--slo", "small=0"), "--slo small is 0"),
        (("--gpu", "h101"), "did you mean h100?"),
        (("--price", "x=2"), "--price x"),
        (("--system", "none"), "unknown system 'none'"),
        (("--explain", "none"), "small, large"),
        (("--draw", "plan.pdf"), ".svg or .png"),
        (("--what-if", "rates=0"), "not a number above 0"),
        (("--what-if", "speed=2"), "expected rates=0.5,1,2"),
        (("--what-if", "model=none:1:2"), "no profile of 'none'"),
        (("--what-if", "rates=2", "--save", "x.json"), "--save does not go with it"),
        (("--compare", "--explain", "small"), "--explain does not go with it"),
    ],
)
def test_options_refused(question: Question, arguments: tuple[str, ...], words: str) -> None:
    assert words in question.refused(*arguments)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('gpu = "2080ti"', "", "gpu is missing"),
        ('gpu = "2080ti"', 'gpu = "x"', "no kind of GPU 'x'"),
        ("gpus = 8", "gpus = 0", "gpus is 0; expected a whole number from 1"),
        ("gpus = 8", "gpu_count = 8", "gpu_count is an unknown key"),
        ('["p.csv"]', '["q.csv"]', "No such file"),
        ("rate_rps = 50\n", "", "models.large.rate_rps is missing"),
        ("rate_rps = 50", "rate_rps = -50", "models.large.rate_rps is -50"),
        ("rate_rps = 50", "rate_rps = nan", "models.large.rate_rps is nan"),
        ("slo_ms = 200", "slo_ms = inf", "models.large.slo_ms is inf"),
        ("slo_ms = 200", "slo_ms = '2'", "models.large.slo_ms is '2'"),
        ("slo_ms = 200", "slo_ms = 200\nattainment = 1.0", "models.large.attainment is 1.0"),
        ("slo_ms = 200", "slo_ms = 200\nmax_batch = 1.5", "models.large.max_batch is 1.5"),
        ("slo_ms = 200", "slo_ms = 200\nslo = 2", "models.large.slo is an unknown key"),
        ("[models.small]", "[models.small", "not TOML"),
    ],
)
def test_scenarios_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in SCENARIO
    assert words in Question(tmp_path, SCENARIO.replace(old, new)).refused()


def test_own_kind_of_gpu(tmp_path: Path) -> None:
    table = 'gpu = { kind = "mine", memory_gb = 4, shares_pct = [50, 100] }'
    said = Question(tmp_path, SCENARIO.replace('gpu = "2080ti"', table)).plan("--json").json
    assert said["gpu"] == "mine"
    assert {part["share_pct"] for part in said["partitions"]} <= {50, 100}


def test_refusal_ends_with_2(question: Question, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["interlace", "plan", str(question.path), "--rate", "x=nan"])
    with pytest.raises(SystemExit) as caught:
        entry.main()
    assert caught.value.code == 2


def test_busy_neighbours_cost_gpus_and_leave_the_bound(tmp_path: Path) -> None:
    calm = Question(tmp_path).plan("--json", *SEVERAL).json
    crowded = Question(tmp_path, f"slowdown = 3.0\n{SCENARIO}").plan("--json", *SEVERAL).json
    assert crowded["lower_bound"] == calm["lower_bound"]
    assert crowded["gpus"] >= calm["gpus"]
    assert crowded["partitions"] != calm["partitions"]
    assert "slowdown is 0.5" in Question(tmp_path, f"slowdown = 0.5\n{SCENARIO}").refused()


def test_measured_corunning_slows_as_it_was_seen(tmp_path: Path) -> None:
    def seen(slowdown: float) -> Path:
        pairs = [
            CoRun(CoRunner(a, batch, 50), (CoRunner(b, batch, 50),), 1.0, slowdown, 1.0, 9)
            for a in ("small", "large")
            for b in ("small", "large")
            for batch in (1, 4)
        ]
        save_coruns(tmp_path / "coruns.json", "2080ti", {}, pairs)
        return tmp_path

    text = f'slowdown = "coruns.json"\n{SCENARIO}'
    calm = Question(tmp_path).plan("--json", *SEVERAL).json
    unslowed = Question(seen(1.0), text).plan("--json", *SEVERAL).json
    assert unslowed["partitions"] == calm["partitions"]
    slowed = Question(seen(3.0), text).plan("--json", *SEVERAL).json
    assert slowed["lower_bound"] == calm["lower_bound"]
    assert slowed["partitions"] != calm["partitions"]
    assert slowed["gpus"] >= calm["gpus"]


def test_what_is_no_file_of_coruns_is_said(tmp_path: Path) -> None:
    text = f'slowdown = "coruns.json"\n{SCENARIO}'
    assert "coruns.json: No such file" in Question(tmp_path, text).refused()
    (tmp_path / "coruns.json").write_text("[]")
    assert "not a file of co-runs" in Question(tmp_path, text).refused()
    stranger = CoRun(CoRunner("other", 1, 50), (CoRunner("small", 1, 50),), 1.0, 2.0, 1.0, 9)
    save_coruns(tmp_path / "coruns.json", "2080ti", {}, [stranger])
    assert "no pair of the scenario's models" in Question(tmp_path, text).refused()
    tiny = CoRun(CoRunner("large", 1, 1), (CoRunner("small", 1, 50),), 1.0, 2.0, 1.0, 9)
    save_coruns(tmp_path / "coruns.json", "2080ti", {}, [tiny])
    assert "does not go with the profiles" in Question(tmp_path, text).refused()
