"""A run of gpu-check: what is kept however it ends, what is told last, what goes on from where."""

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from bench.gpu.bench import Bench
from bench.gpu.findings import NAME, ROWS, Findings, bundle, unpack
from bench.gpu.parts import Part
from bench.gpu.rows import Row, Verdict, failed, judged, law, seen
from bench.gpu.run import Course, end_daemons, main, nvml_open, run, temporary
from bench.gpu.show import Screen, again
from bench.gpu.switches import Switches, choose, chosen
from interlace.device.cuda.green_contexts.atoms import Atoms
from tests.device.cuda.mps_control import control_program

ROOT = Path(__file__).resolve().parents[2]


def good(bench: Bench) -> Iterator[Row]:
    yield seen("first", "1")
    yield seen("temporary", os.environ["TMPDIR"])
    yield seen("home", str(Path.home()))


def crash(bench: Bench) -> Iterator[Row]:
    yield seen("before", "there")
    os.abort()


def waits(bench: Bench) -> Iterator[Row]:
    yield seen("before", "there", number=1)
    far = subprocess.Popen(["sleep", "600"], start_new_session=True)
    (bench.out / "far").write_text(str(far.pid))
    time.sleep(600)


def leaves_a_daemon(bench: Bench) -> Iterator[Row]:
    pipe = Path(os.environ["TMPDIR"]) / "interlace-mps-abc" / "pipe"
    pipe.mkdir(parents=True)
    (pipe.parent / "log").mkdir()
    yield seen("pipe", str(pipe))


def part(name: str, seconds: float = 60.0) -> Part:
    return Part(name, "tests", seconds, name, f"tests.bench.test_gpu_run:{name}")


def ran(parts: Sequence[Part], out: Path, resume: bool = False, dry: bool = False) -> Findings:
    findings = Findings(out, dry)
    run(Course(parts, out / NAME, resume=resume), findings, Screen(dry))
    return findings


def lines(out: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (out / ROWS).read_text().splitlines()]


# ------------------------------------------------------------------------------- going on


def test_finished_parts_are_read_and_unfinished_ones_run_again(tmp_path: Path) -> None:
    parts = [part("good"), part("crash")]
    first = ran(parts, tmp_path)
    assert [one.finished for one in first.results] == [True, False]
    _, temporary_, home = first.results[0].rows
    assert Path(home.found).is_dir() and tmp_path in Path(home.found).parents
    assert not Path(temporary_.found).exists()
    kept = json.loads((tmp_path / "good.json").read_text())
    kept["rows"][0]["found"] = "kept"
    (tmp_path / "good.json").write_text(json.dumps(kept))
    again_ = ran(parts, tmp_path, resume=True)
    assert again_.results[0].rows[0].found == "kept"
    assert again_.results[1].rows[0].found == "there"
    dry = ran(parts[:1], tmp_path, resume=True, dry=True)  # what a GPU found is not for it
    assert dry.results[0].rows[0].found == "ran"
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["dry"] and summary["parts"]["good"]["verdicts"] == {"dry": 3}


def test_a_run_goes_on_from_the_bundle_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bench.gpu.run.chosen", lambda names: [part("good")])
    first, second = tmp_path / "first", tmp_path / "second"
    (first / "profiles" / "kind").mkdir(parents=True)
    (first / "profiles" / "kind" / "one.json").write_text("{}")
    assert main(["--out", str(first), "--bundle", str(tmp_path / "all.tgz")]) == 0
    assert main(["--out", str(second), "--resume", str(tmp_path / "all.tgz")]) == 0
    assert "took" in capsys.readouterr().out
    assert (second / "profiles" / "kind" / "one.json").read_text() == "{}"
    assert main(["--out", str(second), "--resume", str(tmp_path / "none.tgz")]) == 2
    assert "none.tgz" in capsys.readouterr().err


def test_the_switches_are_kept_for_runs_of_the_same_kind(tmp_path: Path) -> None:
    assert chosen(tmp_path, False) == Switches()
    wanted = Switches("green", Atoms(15, 8, 12), {"mps": "no daemon"})
    choose(tmp_path, False, wanted)
    assert chosen(tmp_path, False) == wanted
    assert chosen(tmp_path, True) == Switches()


# ------------------------------------------------------------------------------- the end

_CUT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs tests may ignore it
from bench.gpu import run
from tests.bench.test_gpu_run import part
run.chosen = lambda names: [part("good"), part("waits"), part("good")]
sys.exit(run.main(["--out", sys.argv[1], *sys.argv[2:]]))
"""


def _begun(out: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _CUT, str(out), *arguments],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def _wait(until: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 90
    while not until():
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.05)


def _gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_told_to_end_leaves_rows_summary_and_bundle(
    tmp_path: Path, number: signal.Signals
) -> None:
    begun = _begun(tmp_path)
    _wait((tmp_path / "far").exists)
    begun.send_signal(number)
    said, _ = begun.communicate(timeout=60)
    assert begun.returncode == 1, said
    assert f"told to end by {number.name}" in said
    rows = [(line.get("part"), line.get("what")) for line in lines(tmp_path)]
    assert ("good", "first") in rows and ("waits", "before") in rows
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["cut"] == f"told to end by {number.name}"
    assert summary["parts"]["good"]["finished"] and not summary["parts"]["waits"]["finished"]
    unpack(tmp_path / NAME, tmp_path / "elsewhere")
    kept = json.loads((tmp_path / "elsewhere" / "waits.json").read_text())
    assert not kept["finished"] and kept["rows"][0]["figures"] == {"number": 1}
    assert _gone(int((tmp_path / "far").read_text()))  # and nobody holds the GPU


def test_a_run_that_is_killed_has_lost_no_part_before(tmp_path: Path) -> None:
    begun = _begun(tmp_path)
    _wait((tmp_path / "far").exists)
    begun.kill()
    begun.communicate(timeout=60)
    assert lines(tmp_path)[-1]["what"] == "before"
    with tarfile.open(tmp_path / NAME) as archive:
        assert {"good.json", "summary.json", ROWS} <= set(archive.getnames())
    far = int((tmp_path / "far").read_text())
    _wait(lambda: _gone(far))  # and nobody holds the GPU


def test_a_run_ends_by_its_own_limit_and_says_what_it_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [part("good", 15.0), part("crash", 500.0)]
    monkeypatch.setattr("bench.gpu.run.chosen", lambda names: parts)
    assert main(["--out", str(tmp_path), "--most-s", "60"]) == 0
    said = capsys.readouterr().out
    assert "crash: left out, it needs 500 s" in said
    assert "no time was left for: crash; --resume goes on with them" in said
    assert json.loads((tmp_path / "summary.json").read_text())["left_out"] == ["crash"]
    assert not (tmp_path / "crash.json").exists()


# ------------------------------------------------------------------------------ the bundle


def test_a_bundle_has_findings_and_no_caches_and_is_never_too_large(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for name, data in {
        "summary.json": b"{}",
        ROWS: b"{}\n",
        "profiles/kind/model.json": b"{}",
        "part.log": os.urandom(1 << 20),
        "large.json": os.urandom(200_000),
        ".home/.cache/interlace/kernels/sm_90.cubin": b"kernel",
        "package.so": b"program",
    }.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(data)
    assert bundle(out, tmp_path / "all.tgz") == []
    with tarfile.open(tmp_path / "all.tgz") as archive:
        names = archive.getnames()
    assert names[:2] == ["summary.json", ROWS]
    assert set(names[2:]) == {"large.json", "profiles/kind/model.json", "part.log"}
    assert bundle(out, tmp_path / "small.tgz", most_bytes=100_000) == ["large.json", "part.log"]
    assert (tmp_path / "small.tgz").stat().st_size <= 100_000
    unpack(tmp_path / "small.tgz", tmp_path / "again")
    assert (tmp_path / "again" / "left-out.txt").read_text() == "large.json\npart.log"
    assert bundle(out, tmp_path / "log.tgz", most_bytes=400_000) == []
    unpack(tmp_path / "log.tgz", tmp_path / "log")
    tail = (out / "part.log").read_bytes()[-(128 << 10) :]
    assert (tmp_path / "log" / "part.log").read_bytes() == tail


# -------------------------------------------------------------------------- what is told last


def _found(out: Path, rows: Sequence[Row]) -> Findings:
    findings = Findings(out, False)
    findings.begin(part("good"), {})
    for row in rows:
        findings.row(row)
    findings.end(finished=True)
    findings.close()
    return findings


def test_what_failed_is_told_again_before_what_is_unexpected(tmp_path: Path) -> None:
    rows = [
        judged("share", "1.0", "2.0", False),
        seen("rate", "5"),
        law("lost", "none", "3", False),
        failed("copies", "no memory\nat all"),
        law("kept", "all", "all", True),
    ]
    said = again(_found(tmp_path, rows))
    assert said[0].strip() == "1 laws hold; 2 rows failed, 1 are not as expected"
    assert said[1:] == [
        "good: lost: 3 (expected: none)",
        "good: copies: no memory at all",
        "good: share: 2.0 (expected: 1.0)",
    ]


def test_what_is_told_again_stays_short(tmp_path: Path) -> None:
    said = again(_found(tmp_path, [failed(f"row {n}", "x" * 1000) for n in range(100)]))
    assert len("\n".join(said)) <= 6000
    assert len(said) > 10
    assert said[-1] == f"and {100 - (len(said) - 2)} more, in {ROWS}"


# ------------------------------------------------------------------------ what parts leave


def test_a_daemon_that_a_part_left_is_told_to_quit_and_its_files_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, told = control_program(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-0")
    monkeypatch.setenv("CUDA_MPS_LOG_DIRECTORY", str(tmp_path))
    (one,) = ran([part("leaves_a_daemon")], tmp_path / "out").results
    assert [row.what for row in one.rows] == ["pipe", "a daemon of MPS was left behind"]
    assert one.rows[1].found == "ended: it was told to quit"
    assert told.read_text() == "quit -t 5 GPU-0\n"
    assert not Path(one.rows[0].found).exists()


def test_a_daemon_that_does_not_answer_is_killed_by_its_number(tmp_path: Path) -> None:
    asleep = subprocess.Popen(["sleep", "600"])
    pipe = tmp_path / "interlace-mps-x" / "pipe"
    pipe.mkdir(parents=True)
    (pipe / "nvidia-cuda-mps-control.pid").write_text(f"{asleep.pid}\n")
    (row,) = end_daemons(tmp_path, "/bin/false")
    assert row.found == "ended: it did not answer, and was killed"
    assert asleep.wait(10) == -signal.SIGKILL
    (row,) = end_daemons(tmp_path, "/bin/false")
    assert row.found == "ended: it did not answer, and no longer runs"
    (row,) = end_daemons(tmp_path, str(tmp_path / "no program"))
    assert row.verdict is Verdict.FAILED


def test_temporary_files_go_whoever_made_them() -> None:
    with temporary() as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "file").write_text("left")
    assert not folder.exists()


class _Nvml:
    """A stand-in for ``pynvml`` that says whether it is open."""

    class NVMLError(Exception):
        pass

    def __init__(self, on: int) -> None:
        self._on = on
        self.open = 0

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetPersistenceMode(self, gpu: int) -> int:
        return self._on


@pytest.mark.parametrize("on", [0, 1])
def test_nvml_stays_open_and_persistence_is_told(on: int) -> None:
    nvml = _Nvml(on)
    with nvml_open(False, nvml) as row:
        assert nvml.open == 1
        assert row.figures == {"on": bool(on)}
    assert nvml.open == 0
    with nvml_open(True, nvml) as row:
        assert row.verdict is Verdict.SKIPPED and nvml.open == 0
