"""The parts of gpu-check: time, names, what is kept, what crashes, what hangs."""

import inspect
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.gpu.bench import Bench
from bench.gpu.child import Children, Errand
from bench.gpu.parts import END_S, MOST_S, PARTS, Part, chosen, granted_s, with_seconds
from bench.gpu.rows import (
    Row,
    Verdict,
    as_json,
    attempt,
    failed,
    judged,
    law,
    seen,
    skipped,
)
from bench.gpu.run import FAKE, main

ROOT = Path(__file__).resolve().parents[2]
#: What serves requests over a network, and what only the examples or other formats need.
FORBIDDEN = (
    "uvloop", "httptools", "hpack", "grpc", "typer", "transformers", "onnxruntime",
    "matplotlib", "safetensors", "tritonclient", "psutil", "aiohttp", "rich",
)  # fmt: skip


#: What a test of a few seconds walks without a GPU, one process a part. The others start devices:
#: test_gpu_comparisons.py walks what they do in one process, `scripts/gpu-check --dry-run` all.
CHEAP = ("versions", "cold-start")
COSTLY = ("preflight", "contracts", "profiles", "goodput", "isolation", "changing", "twin")


def test_the_first_parts_fit_one_run_and_names_are_told_apart() -> None:
    usual = ("preflight", "versions", "goodput", "isolation", "cold-start", "changing")
    assert tuple(part.name for part in chosen([])) == usual
    assert sum(part.seconds for part in chosen([])) + END_S <= 480.0 - 30.0  # torch's import
    assert all(part.seconds + END_S <= MOST_S for part in PARTS)
    assert len({part.name for part in PARTS}) == len(PARTS)


def test_what_a_part_reads_comes_before_it() -> None:
    names = [part.name for part in PARTS]
    readers = ("goodput", "isolation", "twin")
    assert all(names.index("profiles") < names.index(one) for one in readers)


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=8),
    st.lists(st.booleans(), min_size=8, max_size=8),
    st.integers(0, 300),
)
def test_no_run_lasts_longer_than_it_may_and_nobody_loses_what_fitted(
    seconds: list[int], stretched: list[bool], left_s: float
) -> None:
    parts = [Part(str(place), "g", float(each), "", "") for place, each in enumerate(seconds)]
    fitted = _fitting(parts, left_s)
    for place, (one, all_of_it) in enumerate(zip(parts, stretched, strict=False)):
        granted = granted_s(one, parts[place + 1 :], left_s)
        assert granted == 0 or one.seconds <= granted <= min(2 * one.seconds, left_s)
        assert (granted > 0) is (one.name in fitted)
        left_s -= min(granted, granted if all_of_it else one.seconds)
    assert granted_s(parts[0], (), 1e9) == 2 * parts[0].seconds


def _fitting(parts: list[Part], left_s: float) -> set[str]:
    """Those that have time if each takes its own, in their order."""
    found: set[str] = set()
    for one in parts:
        if one.seconds <= left_s:
            found.add(one.name)
            left_s -= one.seconds
    return found


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_every_part_has_an_entry_that_takes_a_bench(part: Part) -> None:
    module, _, name = part.entry.partition(":")
    entry = getattr(import_module(module), name)
    assert list(inspect.signature(entry).parameters) == ["bench"]


def test_the_two_runs_name_all_usual_parts_but_the_versions_and_profiles_before() -> None:
    page = (ROOT / "docs" / "gpu.md").read_text()
    runs = page[page.index("### Two short runs") :]
    named = [word for words in re.findall(r"--only ([a-z- ]+?)(?: --|$)", runs, re.M)
             for word in words.split()]  # fmt: skip
    assert named[:2] == ["preflight", "profiles"]
    usual = [part.name for part in PARTS if part.usual]
    assert sorted([*named, "versions"]) == sorted([*usual, "profiles"])


def test_parts_are_chosen_by_name_and_group_and_stay_in_order() -> None:
    assert [one.name for one in chosen(["twin", "goodput"])] == ["goodput", "twin"]
    assert {one.group for one in chosen(["comparisons"])} == {"comparisons"}
    (longer,) = with_seconds(chosen(["goodput"]), ["goodput=200"])
    assert longer.seconds == 200.0
    for said in ("goodput", "goodput=x", "godput=3"):
        with pytest.raises(KeyError, match="expected PART=SECONDS"):
            with_seconds(chosen([]), [said])
    with pytest.raises(KeyError, match="did you mean twin"):
        chosen(["twni"])


def test_the_page_has_every_part_with_its_seconds() -> None:
    text = (ROOT / "docs" / "gpu.md").read_text()
    for part in PARTS:
        assert f"| `{part.name}` | {part.seconds:g} | {part.tells} |" in text


def test_a_row_survives_its_json() -> None:
    row = judged("what", "1", "2", False, ms=1.5, none=float("nan"), many=(1, 2))
    plain = json.loads(as_json(row.plain()))
    assert plain["figures"] == {"ms": 1.5, "none": "nan", "many": [1, 2]}
    again = msgspec.convert(plain, Row)
    assert (again.what, again.expected, again.found, again.verdict) == (
        "what", "1", "2", Verdict.OTHER,
    )  # fmt: skip


def test_no_figure_leaves_a_dry_run() -> None:
    dry = seen("rate", "50 GB/s", gbs=50.0).dry()
    assert (dry.found, dry.figures, dry.verdict) == ("ran", {}, Verdict.DRY)
    assert skipped("a", "b").dry().verdict is Verdict.SKIPPED
    assert failed("a", "b").dry().verdict is Verdict.FAILED


def test_a_law_must_hold_without_a_gpu_too_and_an_expectation_need_not() -> None:
    assert law("a", "so", "so", True, ms=1.0).dry().verdict is Verdict.DRY
    assert law("a", "so", "not so", False).dry() == Row("a", "so", "not so", Verdict.FAILED)
    assert judged("a", "so", "not so", False).dry().verdict is Verdict.DRY
    assert law("a", "so", "not so", False).broken
    assert not judged("a", "so", "not so", False).broken
    again = msgspec.convert(json.loads(as_json(law("a", "so", "not so", False).plain())), Row)
    assert again.binding


def lawless(bench: Bench) -> Iterator[Row]:
    yield law("contract", "holds", "does not hold", False)


@pytest.mark.parametrize("dry", [["--dry-run"], []])
def test_a_contract_that_does_not_hold_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dry: list[str]
) -> None:
    monkeypatch.setattr("bench.gpu.run.chosen", lambda names: [part("lawless")])
    assert main([*dry, "--out", str(tmp_path)]) == 1
    kept = json.loads((tmp_path / "lawless.json").read_text())
    assert kept["rows"][0]["found"] == "does not hold"


def test_a_broken_question_is_a_row_and_keeps_what_came_before() -> None:
    def ask() -> Iterator[Row]:
        yield seen("first", "1")
        raise ValueError("no")

    first, second = attempt("second", ask)
    assert first.what == "first"
    assert (second.verdict, second.found) == (Verdict.FAILED, "ValueError: no")


# ------------------------------------------------------------------- parts that misbehave


def good(bench: Bench) -> Iterator[Row]:
    yield seen("environment", os.environ["CUDA_DEVICE_MAX_CONNECTIONS"])
    yield seen("dry", str(bench.dry))


def crash(bench: Bench) -> Iterator[Row]:
    yield seen("before", "there")
    os.abort()


def hang(bench: Bench) -> Iterator[Row]:
    yield seen("before", "there")
    far = subprocess.Popen(["sleep", "60"], start_new_session=True)
    yield seen("far", str(far.pid))
    time.sleep(60)


def part(name: str, seconds: float = 20.0) -> Part:
    return Part(name, "tests", seconds, name, f"tests.bench.test_gpu_parts:{name}")


def errand(name: str, out: Path, seconds: float = 20.0) -> Errand:
    entry = part(name).entry
    return Errand(entry, FAKE, False, out, out / f"{name}.log", seconds)


def test_a_crash_is_a_row_and_others_go_on(tmp_path: Path) -> None:
    children = Children()
    before, crashed = children.rows(errand("crash", tmp_path))
    assert before.found == "there"
    assert crashed.verdict is Verdict.FAILED
    assert "SIGABRT" in crashed.found
    first, second = children.rows(errand("good", tmp_path))
    assert first.found == "32"
    assert second.found == "False"


def test_what_hangs_is_ended_and_says_where_it_stood(tmp_path: Path) -> None:
    began_s = time.monotonic()
    before, far, ended = Children().rows(errand("hang", tmp_path, seconds=6.0))
    assert before.found == "there"
    assert not Path(f"/proc/{far.found}").exists() or _is_dead(int(far.found))
    assert "did not end within 6 s" in ended.found
    assert time.monotonic() - began_s < 15.0
    assert "in hang" in (tmp_path / "hang.log").read_text()


def _is_dead(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_an_unknown_part_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "everything"]) == 2
    assert "there are: preflight, versions" in capsys.readouterr().err


def test_nothing_of_the_web_is_imported() -> None:
    code = f"""
import sys
class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {FORBIDDEN!r}:
            raise ImportError(name + " must not be needed")
sys.meta_path.insert(0, Forbidden())
from importlib import import_module
import bench.gpu.run
from bench.gpu.parts import PARTS
for part in PARTS:
    import_module(part.entry.partition(":")[0])
import bench.gpu.devices
print("done")
"""
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert said.stdout.strip() == "done", said.stderr


def test_a_dry_run_walks_every_part_that_starts_no_device_and_tells_them_plainly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sorted((*CHEAP, *COSTLY)) == sorted(part.name for part in PARTS)
    assert main(["--dry-run", "--only", *CHEAP, "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "no figure above says anything of" in said
    for name in CHEAP:
        kept = json.loads((tmp_path / f"{name}.json").read_text())
        assert kept["dry"] and kept["finished"] and kept["rows"], name
        assert not any(row["figures"] for row in kept["rows"])


def test_the_script_starts_and_knows_its_parts() -> None:
    said = subprocess.run(
        [ROOT / "scripts" / "gpu-check", "--help"], capture_output=True, text=True, check=True,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )  # fmt: skip
    for one in PARTS:
        assert one.name in said.stdout
