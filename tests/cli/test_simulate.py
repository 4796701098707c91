"""`interlace simulate` as its user sees it."""

import json
from pathlib import Path

import pytest

from interlace.core.user_errors import InputError
from tests.cli.planning import invoke, printed

SCENARIO = """
gpu = "v100"
gpus = 8
profiles = ["p.csv"]

[models.a]
rate_rps = 300
slo_ms = 40

[models.b]
rate_rps = 50
slo_ms = 100
workload = { kind = "mmpp", states = [[20, 0.5], [80, 0.5]] }
"""
HEAD = "model,gpu_kind,batch,share_pct,latency_ms"


def _folder(tmp_path: Path, scenario: str = SCENARIO) -> Path:
    rows = [HEAD]
    for model, row_ms in (("a", 0.5), ("b", 2.0)):
        for share, factor in ((25, 3.0), (50, 1.6), (100, 1.0)):
            for batch in (1, 2, 4, 8, 16, 32):
                rows.append(f"{model},v100,{batch},{share},{(2 + batch * row_ms) * factor}")
    (tmp_path / "p.csv").write_text("\n".join(rows))
    path = tmp_path / "s.toml"
    path.write_text(scenario)
    return path


def _run(*words: str) -> str:
    return printed("simulate", *words)


def test_one_system_is_reported_model_by_model(tmp_path: Path) -> None:
    out = _run(str(_folder(tmp_path)), "--seconds", "2")
    assert "in SLO %" in out
    assert "interlace:" in out
    assert " in the plan, " in out


def test_several_systems_meet_one_trace(tmp_path: Path) -> None:
    path = str(_folder(tmp_path))
    found = json.loads(
        _run(path, "--seconds", "2", "--systems", "interlace,gpulet,dstack", "--json")
    )
    assert [one["system"] for one in found] == ["interlace", "gpulet", "dstack"]
    assert len({one["report"]["requests"] for one in found}) == 1
    again = json.loads(_run(path, "--seconds", "2", "--systems", "gpulet", "--json"))
    assert again[0]["report"] == found[1]["report"]


def test_loads_seeds_and_pictures(tmp_path: Path) -> None:
    pictures = [tmp_path / f"{kind}.svg" for kind in ("cdf", "tiles", "load", "gpus")]
    words = [word for path in pictures for word in ("--plot", f"{path.stem}={path}")]
    out = _run(
        str(_folder(tmp_path)), "--seconds", "1", "--load", "0.5,2", "--seeds", "2",
        "--gpus", "1", *words,
    )  # fmt: skip
    assert "load 0.5" in out
    assert "±" in out
    assert all(path.stat().st_size > 1_000 for path in pictures)


def test_a_plan_that_was_kept_is_followed(tmp_path: Path) -> None:
    scenario, kept = str(_folder(tmp_path)), str(tmp_path / "plan.json")
    assert invoke("plan", scenario, "--system", "gpulet", "--save", kept).exit_code == 0
    words = [scenario, "--seconds", "1", "--system", "gpulet", "--json"]
    assert json.loads(_run(*words, "--plan", kept)) == json.loads(_run(*words))
    with pytest.raises(InputError, match="gpulet made it and nexus would serve it"):
        _run(scenario, "--system", "nexus", "--plan", kept)
    with pytest.raises(InputError, match="does not go with it"):
        _run(scenario, "--gpus", "2", "--plan", kept)


def test_bounds_stand_beside(tmp_path: Path) -> None:
    (found,) = json.loads(_run(str(_folder(tmp_path)), "--seconds", "1", "--load", "3", "--json"))
    assert 1 <= found["gpus_bound"] <= found["gpus"]
    assert found["highest_load"] >= 3.0 * found["report"]["attainment"]


def test_another_dispatcher(tmp_path: Path) -> None:
    found = json.loads(
        _run(str(_folder(tmp_path)), "--seconds", "1", "--dispatcher", "gpulet", "--json")
    )
    assert found[0]["system"] == "interlace+gpulet"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--systems", "interlace,tritton"], "did you mean triton"),
        (["--load", "full"], "expected numbers"),
        (["--plot", "pie=x.svg"], "expected KIND=FILE"),
        (["--plot", "cdf=x.gif"], "gif"),
        (["--seconds", "0"], "above 0"),
    ],
)
def test_wrong_words_are_told(tmp_path: Path, words: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        _run(str(_folder(tmp_path)), *words)


def test_a_wrong_workload_names_model_and_key(tmp_path: Path) -> None:
    path = _folder(tmp_path, SCENARIO.replace("mmpp", "fractal"))
    with pytest.raises(InputError, match=r"models\.b\.workload\.kind"):
        _run(str(path), "--seconds", "1")
