"""The page in a real browser: hostile names, a thousand models, a phone, a live server."""

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from interlace.core.plan import Demand
from interlace.policy.catalog import CATALOG
from interlace.runtime.log.codec import LogHeader
from interlace.runtime.log.write import LogWriter
from interlace.sim.arrivals import merge_arrivals, poisson
from interlace.sim.run import simulate
from interlace.sim.scenario import Simulation
from tests.builders import line_profile
from tests.cli.test_replay import FLEET
from tests.fleet.stand import FleetStand, Process, free_ports, get, until

from . import programs

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PYTHON = programs.HOME / "browser" / "bin" / "python"
HOSTILE = "<img src=x onerror=alert(1)>"
#: The page has drawn a frame of what it shows.
DRAWN = "#models tbody tr"

pytestmark = [pytest.mark.peer, pytest.mark.process]


class Browser:
    """One Chromium for all tests; each visit has a page of its own."""

    def __init__(self) -> None:
        script = Path(__file__).parent / "browse.py"
        self._driver = subprocess.Popen(
            [str(PYTHON), str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, url: str, *steps: list[str], width: int = 1300) -> list[Any]:
        """What was seen; the page may not have had an error."""
        assert self._driver.stdin is not None and self._driver.stdout is not None
        self._driver.stdin.write(json.dumps([url, width, steps]) + "\n")
        self._driver.stdin.flush()
        found = json.loads(self._driver.stdout.readline())
        assert found["errors"] == []
        seen: list[Any] = found["seen"]
        return seen

    def close(self) -> None:
        self._driver.communicate(timeout=20)


@pytest.fixture(scope="module")
def browse() -> Iterator[Browser]:
    if not PYTHON.exists() or shutil.which("chromium") is None:
        pytest.skip(f"no Chromium, or no playwright in {programs.HOME}: {programs.HOW}")
    browser = Browser()
    yield browser
    browser.close()


@contextmanager
def _shown(*words: str) -> Iterator[str]:
    child = subprocess.Popen(
        [sys.executable, "-m", "interlace", "page", *words, "--port", "0"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    try:
        found = re.search(r"http://\S+/", child.stdout.readline())
        assert found is not None
        yield found.group()
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(20)
        child.stdout.close()


def _log(path: Path, models: list[str], rate_rps: float, seconds: float) -> Path:
    profiles = {name: line_profile(name, 1.0, 0.5) for name in models}
    demand = tuple(Demand(name, rate_rps, 30.0) for name in models)
    arrivals = merge_arrivals({name: poisson(rate_rps) for name in models}, seconds, 0)
    writer = LogWriter(path, LogHeader("test", "gpulet", FLEET))
    simulate(Simulation(CATALOG["gpulet"], FLEET, demand, profiles, profiles, arrivals), [writer])
    writer.close()
    return path


def test_a_log_of_hostile_names_is_scrubbed_and_asked_why_in_two_clicks(
    browse: Browser, tmp_path: Path
) -> None:
    log = _log(tmp_path / "events.log", [HOSTILE, "b"], 2_500.0, 0.5)
    with _shown(str(log)) as url:
        names, when, missed, story = browse(
            url,
            ["until", DRAWN],
            ["text", "#models"],
            ["press", "#at", "End"],
            ["text", "#when"],
            ["save", "#trace", str(tmp_path / "trace.json")],
            ["click", "#tab-why"],
            ["until", "#missed tbody tr"],
            ["text", "#missedcount"],
            ["click", "#missed tbody tr"],
            ["until", "#story:has-text('arrives; ')"],
            ["text", "#story"],
        )  # fmt: skip
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {one["args"]["name"] for one in trace if one["ph"] == "M"} >= {HOSTILE, "requests"}
    assert HOSTILE in names
    assert float(when.split()[0]) > 30.0
    assert int(missed.split()[0]) > 100
    assert "interlace replay" in story and "arrives; to be answered by" in story


def test_a_thousand_models_on_a_phone(browse: Browser, tmp_path: Path) -> None:
    wider = "document.documentElement.scrollWidth - window.innerWidth"
    log = _log(tmp_path / "events.log", [f"model_{n:04}" for n in range(1_000)], 0.5, 2.0)
    with _shown(str(log)) as url:
        shown, now, filtered, why, what_if = browse(
            url,
            ["until", DRAWN],
            ["text", "#shown"],
            ["value", wider],
            ["fill", "#filter", "0777"],
            ["text", "#shown"],
            *[
                step
                for tab in ("why", "whatif")
                for step in (["click", f"#tab-{tab}"], ["value", wider])
            ],
            width=390,
        )
    assert shown == "first 150 of 1000 models"
    assert filtered == "1 models"
    assert max(now, why, what_if) <= 0


def test_a_scenario_is_planned_for(browse: Browser, tmp_path: Path) -> None:
    nine = EXAMPLES / "planning" / "nine.toml"
    with _shown(str(nine)) as url:
        draft, fewest, drawn, goo, kinds = browse(
            url,
            ["fill", "#asked tbody tr:nth-child(2) input", "500"],
            ["click", "#planform button"],
            ["until", "#fewest:text-matches('tried$')"],
            ["text", "#fewest"],
            ["until", "#fewest:text-matches('kept')"],
            ["text", "#fewest"],
            ["value", "document.querySelectorAll('#planned .tile').length"],
            ["text", "#promised tbody tr"],
            ["click", "text=Compare kinds"],
            ["until", "#kinds tbody tr:nth-child(2)"],
            ["text", "#kinds tbody"],
        )
    assert re.match(r"[12] 2080ti, .*, being tried$", draft)
    assert re.match(r"[12] 2080ti, .* kept", fewest)
    assert drawn >= int(fewest[0])
    name, p99_ms, in_slo, gpus_for_more = goo.split("\t")
    assert name == "goo" and 0 < float(p99_ms) < 66 and float(in_slo) >= 99
    assert re.fullmatch(r"2080ti\t\d+\t\d+\t[\d.]+\tyes\na100\t\d+\t\d+\t[\d.]+\tyes", kinds)
    assert 0 < float(gpus_for_more) < 1  # of a GPU for 100 requests/s


def test_a_server_is_watched_under_load_and_again_after_its_restart(
    browse: Browser, tmp_path: Path
) -> None:
    port = free_ports(3)
    down = tmp_path / "down"

    def serve() -> Process:
        return Process(
            tmp_path, "server", "serve", str(EXAMPLES / "fleet"), "--device", "simulated", "--gpu",
            "h100", "--gpus", "2", "--http-port", str(port), "--grpc-port", str(port + 1),
            "--metrics-port", str(port + 2), "--profiles", str(tmp_path / "profiles"),
        )  # fmt: skip

    def seen() -> tuple[str, str]:
        names, state = browse(
            f"http://127.0.0.1:{port + 2}/",
            ["until", '#figures span:first-child b:text-matches("[1-9]")'],  # requests/s
            ["until", '#models td:nth-child(11):text-matches("[0-9]")'],  # prices
            ["text", "#models"],
            ["touch", str(down)],
            ["until", "#state.bad"],
            ["until", '#state:text-is("live")'],
            ["text", "#state"],
        )  # fmt: skip
        return names, state

    servers = [serve()]
    until(lambda: bool(get(f"http://127.0.0.1:{port}/v2/health/ready")))
    words = ("bench", f"127.0.0.1:{port}", "tagger", "--rate", "100", "--seconds", "240")
    load = Process(tmp_path, "load", *words)
    try:
        with ThreadPoolExecutor(1) as pool:
            watching = pool.submit(seen)
            until(down.exists)
            servers[0].end(signal.SIGTERM)
            servers.append(serve())
            names, state = watching.result()
    finally:
        for process in (load, *servers):
            if process.lives:
                process.end()
    assert "tagger" in names and state == "live"


def test_a_fleets_nodes_are_shown(browse: Browser, tmp_path: Path) -> None:
    fleet = FleetStand(tmp_path, EXAMPLES / "fleet", {"left": "h100", "right": "h100"})
    try:
        until(lambda: fleet.serving() == {"left", "right"})
        said, nodes, models = browse(
            f"http://127.0.0.1:{fleet.port}/",
            ["until", '#placed td:nth-child(3):text-matches("[0-9]")'],  # rates, at the second look
            ["text", "#fleetsaid"],
            ["text", "#nodes"],
            ["text", "#placed"],
        )  # fmt: skip
    finally:
        fleet.close()
    assert said.startswith("2 nodes, term 1")
    assert re.search(r"(left|right) \S+ \(1 h100\), serves", nodes)
    assert re.search(r"(left|right)\ttagger\t", models)
