"""A run of gpu-check: what is kept however it ends, how long parts last, what a dry run walks."""

import inspect
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
from importlib import import_module
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.gpu.checks.course import BUNDLE, ROWS, bundle
from bench.gpu.parts import END_S, MOST_S, PARTS, Part, granted_s
from bench.gpu.rows import Row, Verdict, as_line, attempt, failed, judged, law, seen, skipped
from tests.server.fakes import wait_until

ROOT = Path(__file__).resolve().parents[2]
#: What serves requests over a network, and what only the examples or other formats need.
FORBIDDEN = (
    "uvloop", "httptools", "hpack", "grpc", "typer", "transformers", "onnxruntime",
    "matplotlib", "safetensors", "tritonclient", "psutil", "aiohttp", "rich",
)  # fmt: skip
#: What a test of a few seconds walks without a GPU, one process a part. The others start devices:
#: test_gpu_comparisons.py walks what they do in one process, `scripts/gpu-check --dry-run` all.
CHEAP = ("versions", "cold-start")


def begun(out: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """A run of the parts in ``gpu_parts``."""
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "bench/gpu/checks", "-p", "tests.bench.gpu_parts",
         "--out", str(out), *arguments],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip


def ran(out: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    run = begun(out, *arguments, **environment)
    said, _ = run.communicate(timeout=120)
    return run.returncode, said


def found(out: Path, part: str) -> list[str]:
    lines = [json.loads(line) for line in (out / ROWS).read_text().splitlines()]
    return [line["found"] for line in lines if line.get("part") == part and "found" in line]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_parts_that_fail_leave_the_others_and_a_run_goes_on_from_its_bundle(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    names = ("crash", "good", "grandchild", "lawless", "hang", "long")
    code, said = ran(first, "--only", *names, "--most-s", "300", HANG_S="4")
    assert code == 1, said
    assert "3 failed, 2 passed, 1 skipped" in said
    assert said.rpartition("laws hold")[2].count("rate: 2.0 (expected: 1.0)") == 1
    assert found(first, "crash") == ["there", "ended with -6"]
    assert found(first, "good") == ["32", "2.0"]
    assert found(first, "grandchild") == ["True"]
    assert found(first, "hang") == ["there", "did not end within 8 s; stack in hang.log"]
    assert "in hang" in (first / "hang.log").read_text()
    assert all(gone(int(pid)) for pid in (first / "far").read_text().split())
    code, said = ran(
        second, "--resume", str(first / BUNDLE), "--only", "crash", "good", "--dry-run"
    )
    assert code == 1 and "finished before" not in said  # what a GPU found is not for a dry run
    code, said = ran(second, "--resume", str(first / BUNDLE), "--only", "crash", "good")
    assert said.count("finished before") == 1
    assert found(second, "good") == ["32", "2.0"]
    assert found(second, "crash") == 2 * ["there", "ended with -6"]
    code, said = ran(second, "--resume", str(tmp_path / "none.tgz"), "--only", "good")
    assert code and "none.tgz" in said
    code, said = ran(second, "--seconds", "good=x")
    assert code == pytest.ExitCode.USAGE_ERROR and "expected PART=SECONDS" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_keeps_its_rows_and_leaves_no_process(
    tmp_path: Path, number: signal.Signals
) -> None:
    run = begun(tmp_path, "--only", "good", "hang")
    wait_until((tmp_path / "far").exists)
    run.send_signal(number)
    said, _ = run.communicate(timeout=60)
    assert run.returncode not in (0, 1), said
    assert found(tmp_path, "hang") == ["there"]
    with tarfile.open(tmp_path / BUNDLE) as archive:
        assert ROWS in archive.getnames()
    part, far = map(int, (tmp_path / "far").read_text().split())
    wait_until(lambda: gone(part))  # and nobody holds the GPU
    if number == signal.SIGKILL:
        os.kill(far, signal.SIGKILL)
    else:
        assert gone(far)


def test_a_bundle_has_results_and_no_caches_and_is_never_too_large(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for name, data in {
        ROWS: b"{}\n",
        "profiles/kind/model.json": b"{}",
        "part.log": os.urandom(1 << 20),
        "large.json": os.urandom(200_000),
        ".home/.cache/interlace/kernels/sm_90.json": b"kernel",
        "package.so": b"program",
    }.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(data)
    assert bundle(out, tmp_path / "all.tgz") == []
    with tarfile.open(tmp_path / "all.tgz") as archive:
        names = archive.getnames()
        tail = archive.extractfile("part.log")
        assert tail and tail.read() == (out / "part.log").read_bytes()[-(128 << 10) :]
    assert names == [ROWS, "large.json", "profiles/kind/model.json", "part.log"]
    assert bundle(out, tmp_path / "small.tgz", most_bytes=100_000) == ["large.json", "part.log"]
    assert (tmp_path / "small.tgz").stat().st_size <= 100_000


def test_the_usual_parts_fit_one_run_and_what_is_read_comes_first() -> None:
    usual = [part for part in PARTS if part.usual]
    assert sum(part.seconds for part in usual) + END_S <= 480.0 - 30.0  # torch's import
    assert all(part.seconds + END_S <= MOST_S for part in PARTS)
    names = [part.name for part in PARTS]
    assert len(set(names)) == len(names)
    assert all(names.index("profiles") < names.index(one) for one in ("goodput", "twin"))


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=8),
    st.lists(st.booleans(), min_size=8, max_size=8),
    st.integers(0, 300),
)
def test_no_run_lasts_longer_than_it_may_and_nobody_loses_what_fitted(
    seconds: list[int], stretched: list[bool], left_s: float
) -> None:
    parts = [Part(str(place), float(each), "", "") for place, each in enumerate(seconds)]
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


def test_the_page_has_every_part_and_its_runs_name_the_usual_ones() -> None:
    page = (ROOT / "docs" / "gpu.md").read_text()
    for part in PARTS:
        entry = import_module(part.entry.partition(":")[0]).rows
        assert list(inspect.signature(entry).parameters) == ["bench"]
        assert f"| `{part.name}` | {part.seconds:g} | {part.tells} |" in page
    runs = page[page.index("### Two short runs") :]
    named = [word for words in re.findall(r"--only ([a-z- ]+?)(?: --|$)", runs, re.M)
             for word in words.split()]  # fmt: skip
    assert named[:2] == ["preflight", "profiles"]
    usual = [part.name for part in PARTS if part.usual]
    assert sorted([*named, "versions"]) == sorted([*usual, "profiles"])


def test_a_row_survives_its_json() -> None:
    row = judged("what", "1", "2", False, ms=1.5, none=float("nan"), many=(1, 2))
    plain = json.loads(as_line(row.plain()))
    assert plain["figures"] == {"ms": 1.5, "none": "nan", "many": [1, 2]}
    again = msgspec.convert(plain, Row)
    assert (again.what, again.expected, again.found, again.verdict) == (
        "what", "1", "2", Verdict.OTHER,
    )  # fmt: skip


def test_no_figure_leaves_a_dry_run_and_a_law_must_hold_there_too() -> None:
    dry = seen("rate", "50 GB/s", gbs=50.0).dry()
    assert (dry.found, dry.figures, dry.verdict) == ("ran", {}, Verdict.DRY)
    assert skipped("a", "b").dry().verdict is Verdict.SKIPPED
    assert failed("a", "b").dry().verdict is Verdict.FAILED
    assert law("a", "so", "so", True, ms=1.0).dry().verdict is Verdict.DRY
    assert law("a", "so", "not so", False).dry() == Row("a", "so", "not so", Verdict.FAILED)
    assert judged("a", "so", "not so", False).dry().verdict is Verdict.DRY
    assert law("a", "so", "not so", False).broken
    assert not judged("a", "so", "not so", False).broken


def test_a_broken_question_is_a_row_and_keeps_what_came_before() -> None:
    def ask() -> "list[Row]":
        raise ValueError("no")

    (row,) = attempt("second", ask)
    assert (row.verdict, row.found) == (Verdict.FAILED, "ValueError: no")


def test_nothing_of_the_web_is_imported() -> None:
    code = f"""
import sys
class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {FORBIDDEN!r}:
            raise ImportError(name + " must not be needed")
sys.meta_path.insert(0, Forbidden())
from importlib import import_module
import bench.gpu.checks.conftest
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


def test_a_dry_run_walks_parts_that_start_no_device(tmp_path: Path) -> None:
    said = subprocess.run(
        [ROOT / "scripts" / "gpu-check", "--dry-run", "--only", *CHEAP, "--out", tmp_path],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert said.returncode == 0, said.stdout
    assert "no figure says anything of one" in said.stdout
    lines = [json.loads(line) for line in (tmp_path / ROWS).read_text().splitlines()]
    assert [line["part"] for line in lines if line.get("finished")] == list(CHEAP)
    assert not any(line["figures"] for line in lines if "figures" in line)
