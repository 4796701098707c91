"""Every file of a scenario, damaged at random: it is read, or one line says which file and what."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.plan import Partition, Plan, Slot
from interlace.core.user_errors import InputError
from interlace.perf.interference import CoRunner
from interlace.planning.plan_file import load_fleet_plan, save_plan
from interlace.planning.scenario import Scenario, read_scenario
from interlace.planning.simulation import workloads
from interlace.profiling.corun import CoRun, save_coruns
from tests.cli.planning import invoke, rows

GPU = GPU_KINDS["2080ti"]
SCENARIO = """
gpu = "2080ti"
gpus = 8
price_per_hour = { 2080ti = 0.5 }
profiles = ["p.csv"]
slowdown = "coruns.json"
[models.small]
rate_rps = 100
slo_ms = 40
cv = 2
workload = { kind = "azure", file = "minutes.csv", function = "f", speed = 2.0 }
[models.large]
rate_rps = 50
slo_ms = 200
max_batch = 8
workload = { kind = "trace", file = "own.csv", model = "a" }
[models.third]
rate_rps = 5
slo_ms = 200
workload = { kind = "azure-2021", file = "calls.csv", part = "1/2", window_s = 2 }
[models.fourth]
rate_rps = 5
slo_ms = 200
workload = { kind = "mmpp", states = [[10, 1], [90, 0.2]] }
"""
#: What figures, names and marks are replaced by.
ODD = (
    b"", b"\xff", b"\x00", b"\n", b"\r", b'"', b"'", b",", b"[", b"]", b"{", b"}", b"=", b"#", b"-",
    b"3\xc2\xb2", b"\xd9\xa3", b"nan", b"inf", b"-1", b"0", b"1e999", b"1e15", b"0.5", b"true",
    b"null", b"9" * 400, b"9" * 5000, b"[" * 3000, b"x" * 300, b"..", b"/", b" ",
    b"\\u0000", b"\\n", b"\xef\xbb\xbf",
)  # fmt: skip


def _write(folder: Path) -> Path:
    """A whole scenario, with every file that one can name."""
    (folder / "s.toml").write_text(SCENARIO)
    (folder / "p.csv").write_text(rows())
    (folder / "minutes.csv").write_text("HashFunction,1,2\nf,60,120\ng,1,2\n")
    calls = "func,end_timestamp,duration\nf,1,1\ng,3,1\nf,2,1\nf,5,1\n"
    (folder / "calls.csv").write_text(calls)
    (folder / "own.csv").write_text("time_ms,model\n1,a\n9,a\n4,b\n")
    one, two = CoRunner("small", 4, 50), CoRunner("large", 8, 50)
    seen = [CoRun(one, (two,), 10.0, 12.0, 0.9, 50), CoRun(two, (one,), 90.0, 99.0, 1.0, 9)]
    save_coruns(folder / "coruns.json", "2080ti", {}, seen)
    parts = (Partition("p0", "gpu0", 50, (Slot("small", 2, 5.0), Slot("large", 2, 1.0)), 9.0),)
    save_plan(folder / "plan.json", "interlace", GPU, Plan(parts))
    return folder / "s.toml"


def _scenario(path: Path) -> Scenario:
    return read_scenario(path)


def _workloads(path: Path) -> object:
    return workloads(read_scenario(path))


def _plan(path: Path) -> object:
    return load_fleet_plan(path.parent / "plan.json", GPU, "interlace")


READERS: dict[str, Callable[[Path], object]] = {
    "s.toml": _workloads,
    "p.csv": _scenario,
    "coruns.json": _scenario,
    "minutes.csv": _workloads,
    "calls.csv": _workloads,
    "own.csv": _workloads,
    "plan.json": _plan,
}


@st.composite
def damages(draw: st.DrawFn) -> list[tuple[int, int, bytes]]:
    """Where, in thousandths of the file, how many bytes are cut out, and what takes their place."""
    one = st.tuples(st.integers(0, 1000), st.integers(0, 12), st.sampled_from(ODD))
    return draw(st.lists(one, min_size=1, max_size=3))


@pytest.mark.parametrize("name", sorted(READERS))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(damages=damages())
def test_a_damaged_file_is_read_or_refused_in_one_line(
    name: str, damages: list[tuple[int, int, bytes]], tmp_path: Path
) -> None:
    path = _write(tmp_path)
    text = (tmp_path / name).read_bytes()
    for where, cut, put in damages:
        at = where * len(text) // 1000
        text = text[:at] + put + text[at + cut :]
    (tmp_path / name).write_bytes(text)
    try:
        READERS[name](path)
    except InputError as error:
        said = str(error)
        assert len(said.splitlines()) == 1, said
        if name != "s.toml":
            assert name in said


@pytest.mark.parametrize("name", sorted(READERS))
@pytest.mark.parametrize("kind", ["missing", "folder"])
def test_a_file_that_is_not_there_ends_the_command_with_2(
    name: str, kind: str, tmp_path: Path
) -> None:
    path = _write(tmp_path)
    (tmp_path / name).unlink()
    if kind == "folder":
        (tmp_path / name).mkdir()
    words = ["simulate", str(path), "--gpus", "1", "--seconds", "0.1"]
    if name == "plan.json":
        words = [*words[:2], "--plan", str(tmp_path / name)]
    said = invoke(*words).exception
    assert isinstance(said, InputError), "what cannot be used ends the command with 2"
    folder = "found a folder" if name == "plan.json" else "Is a directory"
    wanted = "No such file" if kind == "missing" else folder
    assert name in str(said)
    assert wanted in str(said)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"batch": 0}, "batch is 0; expected a whole number from 1 to"),
        ({"share_pct": 0}, "share_pct is 0; expected a whole number from 1 to 100"),
        ({"batch": "many"}, "batch is 'many'; expected a whole number"),
    ],
)
def test_co_runs_that_cannot_be_are_named(
    change: dict[str, object], said: str, tmp_path: Path
) -> None:
    path = _write(tmp_path)
    kept = json.loads((tmp_path / "coruns.json").read_text())
    kept["seen"][1]["runner"].update(change)
    (tmp_path / "coruns.json").write_text(json.dumps(kept))
    with pytest.raises(InputError, match=rf"coruns\.json.*seen\[1\]\.runner\.{said}"):
        read_scenario(path)


@pytest.mark.parametrize("named", ["tables", "tables/*.csv", "tables/a.csv"])
def test_profiles_may_be_a_folder_or_a_pattern(tmp_path: Path, named: str) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()
    for name in ("a", "b"):
        table = f"model,share_pct,batch,latency_ms\n{name},100,1,5\n"
        (folder / f"{name}.csv").write_text(table)
    (tmp_path / "s.toml").write_text(
        f'gpu = "2080ti"\nprofiles = ["{named}"]\n[models.a]\nrate_rps = 1\nslo_ms = 50\n'
    )
    found = read_scenario(tmp_path / "s.toml")
    assert found.profiles.keys() == ({"a"} if named.endswith("a.csv") else {"a", "b"})
