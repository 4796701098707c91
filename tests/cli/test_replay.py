"""Event logs: written, read back, replayed alike, told in words."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from interlace.core.hardware import Fleet, Gpu, Trait
from interlace.core.plan import Demand
from interlace.core.user_errors import InputError, UserError
from interlace.policy.catalog import CATALOG, system_of
from interlace.runtime.log.codec import LogHeader
from interlace.runtime.log.write import LogWriter
from interlace.sim.arrivals import merge_arrivals, poisson
from interlace.sim.run import simulate
from interlace.sim.scenario import Simulation
from tests.builders import line_profile
from tests.cli.planning import printed
from tests.cli.test_simulate import _folder, _run
from tests.engine.test_cold_starts import layered

FLEET = Fleet((Gpu("g0", "test", 2, 10**9, (50, 100), frozenset(Trait)),))


def _log(path: Path, name: str, limit_bytes: int = 1 << 30, rate_rps: float = 250.0) -> None:
    models = ("a/1#0", "b", "c")  # the first as a live server names it
    profiles = {m: line_profile(m, 1.0 + i, 0.5) for i, m in enumerate(models)}
    demand = tuple(Demand(m, rate_rps, 30.0) for m in profiles)
    arrivals = merge_arrivals({m: poisson(rate_rps) for m in profiles}, 1.0, 0)
    writer = LogWriter(path, LogHeader("test", name, FLEET), limit_bytes=limit_bytes)
    simulate(Simulation(CATALOG[name], FLEET, demand, profiles, profiles, arrivals), [writer])
    writer.close()


def _replay(*words: str) -> str:
    return printed("replay", *words)


def test_an_entry_cut_short_is_told(tmp_path: Path) -> None:
    path = tmp_path / "events.log"
    _log(path, "gpulet")
    assert "not whole" not in _replay(str(path))
    path.write_bytes(path.read_bytes()[:-3])
    out = _replay(str(path))
    assert "its last entry is not whole" in out
    assert "same commands at every event" in out


def test_a_log_that_names_code_runs_it_only_where_the_command_names_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "named_by_a_log.py").write_text(
        f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\n"
        "from interlace.policy.catalog import CATALOG\nown = CATALOG['interlace']\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    name, path = "named_by_a_log:own", tmp_path / "events.log"
    for named in (name, f"{name}/deepplan", f"interlace+{name}"):
        LogWriter(path, LogHeader("test", named, FLEET), limit_bytes=1 << 20).close()
        with pytest.raises(InputError, match=r"names code.*add --system"):
            _replay(str(path))
        path.unlink()
    LogWriter(path, LogHeader("test", name, FLEET), limit_bytes=1 << 20).close()
    with pytest.raises(InputError, match="--system says interlace"):
        _replay(str(path), "--system", "interlace")
    assert not (tmp_path / "ran").exists()
    assert f"decided by {name}" in _replay(str(path), "--system", name)
    assert (tmp_path / "ran").exists()


def test_the_story_of_a_missed_request(tmp_path: Path) -> None:
    path = tmp_path / "events.log"
    _log(path, "gslice", rate_rps=600.0)
    out = _replay(str(path))
    assert "missed 1: request" in out
    told = _replay(str(path), "--missed", "1").splitlines()
    assert "arrives; to be answered by" in told[0]
    assert any("waiting for" in line for line in told)
    assert any(" starts " in line and "believed to end at" in line for line in told)
    assert any(word in " ".join(told[-2:]) for word in ("late", "expired", "refused"))
    assert "while it waited, the partitions that hold its model were had by" in told[-1]
    of_a = _replay(str(path), "--missed", "1", "--model", "a")
    assert of_a == _replay(str(path), "--missed", "1", "--model", "a/1#0")
    assert " of a/1#0 arrives" in of_a
    number = told[0].split("request ")[1].split()[0]
    assert _replay(str(path), "--request", number).splitlines() == told


def test_the_report_of_a_log_is_that_of_its_run(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    path = tmp_path / "events.log"
    run = json.loads(_run(str(folder), "--seconds", "2", "--log", str(path), "--json"))
    told = json.loads(_replay(str(path), "--report"))
    assert told["outcomes"] == run[0]["report"]["outcomes"]
    assert told["latency"] == run[0]["report"]["latency"]


def test_another_decision_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events.log"
    _log(path, "gpulet")
    monkeypatch.setitem(CATALOG, "gpulet", CATALOG["interlace"])
    with pytest.raises(UserError, match="decides otherwise"):
        _replay(str(path))


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--missed", "99999"], "the log has "), (["--request", "0"], "is not in this log")],
)
def test_what_is_not_there_is_told(tmp_path: Path, words: list[str], said: str) -> None:
    path = tmp_path / "events.log"
    _log(path, "gpulet")
    with pytest.raises(InputError, match=said):
        _replay(str(path), *words)


def _log_of_loads(path: Path, slo_ms: float) -> None:
    gpu = replace(FLEET.gpus[0], weights_bytes=400)
    fleet = Fleet((gpu,))
    profiles = {name: layered(name) for name in "ab"}
    demand = tuple(Demand(name, 2.0, slo_ms) for name in profiles)
    arrivals = merge_arrivals({name: poisson(2.0) for name in profiles}, 4.0, 0)
    system = system_of("interlace/copy")
    writer = LogWriter(path, LogHeader("test", system.name, fleet))
    simulate(Simulation(system, fleet, demand, profiles, profiles, arrivals), [writer])
    writer.close()


def test_a_request_that_was_refused_as_cold_has_a_cause_and_no_time(tmp_path: Path) -> None:
    path = tmp_path / "events.log"
    _log_of_loads(path, 15.0)
    told = [_replay(str(path), "--request", str(number)) for number in range(1, 9)]
    refused = [text for text in told if "refused: " in text and "is cold" in text]
    assert any("it was cold, because its weights had" in text for text in refused)
    assert not any("went by loading" in text for text in refused)


def test_the_story_of_a_cold_start(tmp_path: Path) -> None:
    path = tmp_path / "events.log"
    _log_of_loads(path, 200.0)
    assert "same commands at every event" in _replay(str(path))
    told = [_replay(str(path), "--request", str(number)) for number in range(1, 9)]
    cold = [text for text in told if "it was cold" in text]
    assert any("because its weights had not been brought before" in text for text in cold)
    assert any("because its weights had left at" in text for text in cold)
    for text in cold:
        assert "cold, 0.0 of 0.0 MB are there" in text or "loading, " in text
        assert "begins to bring" in text or "loading, " in text
        assert "have come after" in text or "answered" in text


def test_a_trace_has_every_batch_and_request(tmp_path: Path) -> None:
    path, trace = tmp_path / "events.log", tmp_path / "trace.json"
    _log(path, "interlace")
    assert "ui.perfetto.dev" in _replay(str(path), "--trace", str(trace))
    events = json.loads(trace.read_text())["traceEvents"]
    report = json.loads(_replay(str(path), "--json"))
    begins = [one for one in events if one["ph"] == "b"]
    assert len(begins) == sum(one["ph"] == "e" for one in events) == report["requests"]
    slices = [one for one in events if one["ph"] == "X"]
    batches = [one for one in slices if one["cat"] == "batch"]
    answered = [one for one in begins if one["args"]["outcome"] in ("ok", "late")]
    assert sum(one["args"]["requests"] for one in batches) >= len(answered) > 0
    assert all(isinstance(one[key], int) for one in events for key in ("pid", "tid"))
    names = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
    assert set(names.values()) == {"requests", "g0"}
    assert {one["pid"] for one in slices} == {pid for pid, name in names.items() if name == "g0"}
    flows = [one["id"] for one in events if one["ph"] == "s"]
    assert sorted(flows) == sorted(one["id"] for one in events if one["ph"] == "f")
    for track in {(one["pid"], one["tid"]) for one in batches}:
        ends = sorted(
            (one["ts"], one["ts"] + one["dur"])
            for one in batches
            if (one["pid"], one["tid"]) == track
        )
        assert all(a[1] <= b[0] + 0.2 for a, b in pairwise(ends))


def test_a_trace_is_of_the_last_seconds(tmp_path: Path) -> None:
    path, whole, last = tmp_path / "events.log", tmp_path / "whole.json", tmp_path / "last.json"
    _log(path, "interlace")
    _replay(str(path), "--trace", str(whole))
    _replay(str(path), "--trace", str(last), "--last-s", "0.2")

    def times(file: Path) -> list[float]:
        events = json.loads(file.read_text())["traceEvents"]
        return [one["ts"] for one in events if one["ph"] == "e"]

    assert 0 < len(times(last)) < len(times(whole))
    assert max(times(last)) == max(times(whole))
    assert min(times(last)) >= max(times(last)) - 0.3e6
