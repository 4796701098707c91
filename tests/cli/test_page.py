"""The page: frames, a log's history, what ifs, and what it may ask the command line."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from interlace.assembly.page import _overriding
from interlace.core.errors import ServeError
from interlace.core.messages import RefusedUpstream, RequestArrived
from interlace.core.plan import Demand
from interlace.core.request import Callbacks, Request
from interlace.core.user_errors import InputError
from interlace.policy.catalog import CATALOG
from interlace.runtime.log.codec import LogHeader, glance, open_log
from interlace.runtime.log.write import LogWriter
from interlace.server.page.frames import PageTally
from interlace.server.page.routes import Questions, page_html
from interlace.sim.arrivals import merge_arrivals, poisson
from interlace.sim.run import warmed
from interlace.sim.scenario import Simulation
from tests.builders import line_profile
from tests.cli.planning import SCENARIO, Question
from tests.cli.test_replay import FLEET, _log, _replay


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "events.log"
    _log(path, "interlace", rate_rps=1_200.0)
    return path


def _frames(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_replay(*words))
    return found


def test_the_history_of_a_log_counts_every_request_once(log: Path) -> None:
    found = _frames(str(log), "--history", "50")
    frames = found["frames"]
    assert 2 <= len(frames) <= 101
    times = [frame["now_ms"] for frame in frames]
    assert times == sorted(times)
    arrivals = sum(
        isinstance(event, RequestArrived) for _, event in map(glance, open_log(log).entries())
    )
    last = frames[-1]["models"]
    assert 0 < sum(one[1] for one in last) <= arrivals
    for one in last:
        name, arrived, *ended = one[:6]
        assert sum(ended) <= arrived, name
    assert found["missed"] >= len(found["listed"]) > 0  # more is asked than it can do
    assert {one[4] for one in found["listed"]} <= {"late", "expired", "refused", "failed"}
    story = _replay(str(log), "--request", str(found["listed"][0][0]))
    assert f"request {found['listed'][0][0]} of {found['listed'][0][1]} arrives" in story


def test_tiles_are_in_use_as_long_as_batches_ran(log: Path) -> None:
    frames = _frames(str(log), "--history", "50")["frames"]
    for before, after in pairwise(frames):
        then = {p["id"]: p["busy_ms"] for gpu in before["gpus"] for p in gpu["partitions"]}
        for gpu in after["gpus"]:
            for one in gpu["partitions"]:
                grown_ms = one["busy_ms"] - then.get(one["id"], 0.0)
                assert -1e-6 <= grown_ms <= after["now_ms"] - before["now_ms"] + 1e-6
    busy = [p["busy_ms"] for gpu in frames[-1]["gpus"] for p in gpu["partitions"]]
    assert sum(busy) > 500.0  # of a second of overload


def test_a_tally_that_begins_late_drops_what_is_gone() -> None:
    profiles = {m: line_profile(m, 1.0, 0.5) for m in "ab"}
    arrivals = merge_arrivals({m: poisson(100.0) for m in profiles}, 0.1, 0)
    demand = tuple(Demand(m, 100.0, 30.0) for m in profiles)
    scenario = Simulation(CATALOG["interlace"], FLEET, demand, profiles, profiles, arrivals)
    runtime, clock, engine = warmed(scenario, [])
    tally = PageTally()
    end = runtime.observe(tally)
    now_ms, answer = clock.now_ms(), Callbacks(runtime.delivered)
    runtime.submit(Request(runtime.next_id(), "a", now_ms, now_ms + 30.0), answer)
    clock.run(now_ms + 29.0)
    end()
    runtime.submit(Request(runtime.next_id(), "a", clock.now_ms(), 1e9), answer)
    (a, b) = tally.frame(engine.snapshot(), clock.now_ms()).models
    assert (a.arrived, a.in_time, b.arrived) == (1, 1, 0)  # the second was not observed
    tally(0.0, RefusedUpstream("gone", 3, 3), [])
    assert [m.name for m in tally.frame(engine.snapshot(), clock.now_ms()).models] == ["a", "b"]
    assert "gone" not in tally._models


def test_what_if_plays_the_same_requests(log: Path) -> None:
    rows = json.loads(
        _replay(str(log), "--what-if", "gpus=+1", "--what-if", "rates=0.5,slos=2", "--json")
    )
    as_it_came, more, less = rows
    assert [row["name"] for row in rows] == ["as it came", "gpus=+1", "rates=0.5,slos=2"]
    assert as_it_came["requests"] == more["requests"] == less["requests"]
    assert (as_it_came["gpus"], more["gpus"], less["gpus"]) == (1, 2, 1)
    assert as_it_came["in_time"] < 0.9 < more["in_time"]
    for row in rows:
        assert 0 < row["goodput_rps"] <= row["bound_rps"]
        assert row["regret"] == pytest.approx(1 - row["goodput_rps"] / row["bound_rps"])
    assert more["regret"] < 0.01 < as_it_came["regret"]
    assert less["in_time"] > as_it_came["in_time"]
    assert "what if" in _replay(str(log), "--what-if", "system=gpulet")


@pytest.mark.parametrize(
    ("change", "told"),
    [("gpus=0", "at least 1"), ("rates=no", "a factor"), ("power=1", "expected system=NAME"),
     ("rates=1e9", "a factor"), ("gpus", "expected system=NAME")],
)  # fmt: skip
def test_wrong_changes_are_told(log: Path, change: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        _replay(str(log), "--what-if", change)


def test_a_file_that_follows_another_says_whose_profiles_it_needs(tmp_path: Path) -> None:
    profiles = {m: line_profile(m, 1.0, 0.5) for m in "ab"}
    demand = tuple(Demand(m, 200.0, 30.0) for m in profiles)
    arrivals = merge_arrivals({m: poisson(200.0) for m in profiles}, 2.0, 0)
    scenario = Simulation(CATALOG["gpulet"], FLEET, demand, profiles, profiles, arrivals)
    path = tmp_path / "events.log"
    runtime, clock, engine = warmed(scenario, [])
    writer = LogWriter(path, LogHeader("test", "gpulet", FLEET), engine, limit_bytes=60_000)
    end = runtime.observe(writer)
    for number in range(700):
        now_ms = clock.now_ms()
        runtime.submit(Request(runtime.next_id(), "ab"[number % 2], now_ms, now_ms + 30.0),
                       Callbacks(runtime.delivered))  # fmt: skip
        clock.run(now_ms + 2.0)
    end()
    writer.close()
    assert open_log(path).header.checkpoint
    assert set(open_log(path).header.profiles) == {"a", "b"}
    (row, _) = json.loads(_replay(str(path), "--what-if", "gpus=+1", "--json"))
    assert row["requests"] > 0


def test_the_page_is_one_file_within_its_budget() -> None:
    text = page_html().decode()
    assert len(text) <= 120_000
    assert "/*" + "page.js*/" not in text and "uPlot" in text and "MIT License" in text
    assert not re.findall(r"(?:src|href)=[\"']?(?:https?:)?//", text)
    script = (files("interlace.server.page") / "page.js").read_text()
    assert "innerHTML" not in script and "document.write" not in script


def _asked(questions: Questions, **question: object) -> dict[str, Any]:
    """The answer, with the draft that was told before it, if one was."""

    async def ask() -> dict[str, Any]:
        told: dict[str, Any] = json.loads(await questions(question))
        if "draft" not in told:
            return told
        after = {"ask": "tried", "number": told["number"]}
        answer: dict[str, Any] = json.loads(await questions(after))
        with pytest.raises(ServeError, match="no such plan"):
            await questions(after)
        return {**answer, "draft": told["draft"]}

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("question", "told"),
    [
        ({}, "ask is missing"),
        ({"ask": "why"}, "a whole number"),
        ({"ask": "why", "request": "1; reboot"}, "a whole number"),
        ({"ask": "trace", "until_s": -1, "last_s": 60}, "a whole number"),
        ({"ask": "what-if"}, "changes"),
        ({"ask": "what-if", "changes": ["--system=a:b"]}, "a name or a number"),
        ({"ask": "what-if", "changes": ["system=os:system"]}, "a name or a number"),
        ({"ask": "what-if", "changes": ["gpus=1"] * 7}, "1 to 6"),
        ({"ask": "plan", "models": {}}, "nothing to plan for"),
        ({"ask": "tried", "number": 0}, "no such plan"),
    ],
)
def test_questions_that_are_none_are_refused(
    log: Path, question: dict[str, object], told: str
) -> None:
    with pytest.raises(ServeError, match=told):
        _asked(Questions(log, None), **question)


def test_without_a_log_it_is_told_how_to_keep_one() -> None:
    with pytest.raises(ServeError, match="--log FILE"):
        _asked(Questions(None, None), ask="history")


def test_rates_and_slos_that_are_none_are_refused() -> None:
    questions = Questions(None, lambda folder, asked: ["nothing"])
    for models in ({"a": 1}, {"a": [1]}, {"a": [-1, 5]}, {"a": [1, 0]}, {}, None):
        with pytest.raises(ServeError, match="models"):
            _asked(questions, ask="plan", models=models)


@pytest.fixture(scope="module")
def shown(log: Path) -> Iterator[str]:
    """The address of a process that shows the log."""
    with _served("page", str(log), "--port", "0") as url:
        yield url


@contextmanager
def _served(*words: str) -> Iterator[str]:
    """The address that a command says; it ends well."""
    child = subprocess.Popen(
        [sys.executable, "-m", "interlace", *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    found = next(filter(None, (re.search(r"open (http://\S+/)", line) for line in child.stdout)))
    try:
        yield found[1]
    finally:
        child.send_signal(signal.SIGTERM)
        assert child.wait(20) == 0
        child.stdout.close()


def _get(url: str, body: dict[str, object] | None = None, **headers: str) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=60) as answer:
        return answer.headers, answer.read()


@pytest.mark.process
def test_a_log_is_shown_and_asked(shown: str) -> None:
    headers, page = _get(shown)
    assert headers["Content-Type"].startswith("text/html") and page == page_html()
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    about = json.loads(_get(shown + "page/about")[1])
    assert (about["live"], about["log"], about["plan"]) == (False, True, False)
    told = json.loads(_get(shown + "page/ask", {"ask": "history"})[1])
    assert told["status"] == 0 and told["out"]["frames"]
    request = told["out"]["listed"][-1][0]
    why = json.loads(_get(shown + "page/ask", {"ask": "why", "request": request})[1])
    assert f"request {request}" in why["out"]
    assert why["command"].endswith(f"--request {request}")
    trace = {"ask": "trace", "until_s": 31, "last_s": 60}
    events = json.loads(_get(shown + "page/ask", trace)[1])["traceEvents"]
    times_s = [one["ts"] / 1e6 for one in events if "ts" in one]
    assert times_s and max(times_s) <= 31 < told["out"]["frames"][-1]["now_ms"] / 1000
    what = json.loads(_get(shown + "page/ask", {"ask": "what-if", "changes": ["gpus=+1"]})[1])
    assert [row["gpus"] for row in what["out"]] == [1, 2]


@pytest.mark.process
def test_pages_of_others_get_nothing(shown: str) -> None:
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            _get(shown + "page/ask", {"ask": "history"}, **headers)


@pytest.mark.process
def test_a_scenario_is_planned_for_as_it_is_edited(tmp_path: Path) -> None:
    scenario = Path(__file__).resolve().parents[2] / "examples" / "planning" / "nine.toml"
    questions = Questions(None, _overriding([str(scenario)]))
    models = {"goo": [100.0, 66.0], "le": [100.0, 5.0]}
    told = _asked(questions, ask="plan", models=models, gpu="a100")
    assert told["out"]["gpus"] >= 1 and told["out"]["gpu"] == "a100"
    assert told["out"]["models"]["goo"]["price_gpus_per_rps"] > 0
    draft = told["draft"]
    assert draft["gpus"] == told["out"]["gpus"] and draft["partitions"]
    assert (draft["kept"], told["out"]["kept"]) == (None, True), "told before it was tried"
    assert draft["models"]["goo"]["attainment"] is draft["models"]["goo"]["p99_ms"] is None
    assert "--rate goo=100.0" in told["command"]
    wrong = _asked(questions, ask="plan", models={"nobody": [1.0, 10.0]})
    assert wrong["status"] == 2 and "nobody" in wrong["error"]


@pytest.mark.process
def test_a_plan_is_shown_and_asked_again(tmp_path: Path) -> None:
    question = Question(tmp_path)
    with _served("plan", str(question.path), "--price", "2080ti=3", "--page", "0") as url:
        about = json.loads(_get(url + "page/about")[1])
        assert about["answer"]["out"]["models"].keys() == about["models"].keys()
        told = json.loads(_get(url + "page/ask", {"ask": "plan", "models": about["models"]})[1])
        assert told["draft"]["kept"] is None
        told = json.loads(_get(url + "page/ask", {"ask": "tried", "number": told["number"]})[1])
        assert told["out"]["cost_per_hour"] == 3 * told["out"]["gpus"] > 0
        assert "2080ti" in about["kinds"]
    assert "goes with --json" in question.refused("--draft")
    question.path = tmp_path
    assert "is no scenario" in question.refused("--page", "0")


@pytest.mark.process
def test_a_plan_comes_with_the_scenario_that_was_made_for_it(tmp_path: Path) -> None:
    Question(tmp_path)
    text = SCENARIO.replace("p.csv", str(tmp_path / "p.csv"))

    def planned(folder: Path, asked: object) -> list[str]:
        (folder / "scenario.toml").write_text(text)
        return [str(folder / "scenario.toml")]

    told = _asked(Questions(None, planned), ask="plan", models={"small": [100.0, 40.0]})
    assert (told["command"], told["scenario"]) == ("interlace plan scenario.toml --json", text)
    assert told["out"]["gpus"] >= 1
