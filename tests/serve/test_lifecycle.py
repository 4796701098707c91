"""Start, reload, unload, faults and the end, as an operator sees them."""

import http.client
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bench.attack.repository import write_model
from tests.serve.conftest import Start
from tests.serve.server import CRASH, SLEEP, Server, Traffic


def _metric(server: Server, name: str) -> list[str]:
    _, text = server.call("GET", "/metrics")
    return [line for line in text.splitlines() if line.startswith(name)]


class Shared(NamedTuple):
    """A server for all that harms no other's models: ``good`` stays as it is, each has its own."""

    root: Path
    server: Server


@pytest.fixture(scope="module")
def harmed(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Server]:
    """A server for all that kills its workers."""
    root = tmp_path_factory.mktemp("harmed")
    for name, extra in (("m", SLEEP), ("bomb", CRASH), ("poison", CRASH), ("calm", "pass")):
        write_model(root, name, extra=extra)
    server = Server(root, cache)
    try:
        yield server.wait_ready()
    finally:
        server.kill()


def _restarts(server: Server) -> int:
    (line,) = _metric(server, "interlace_worker_restarts_total")
    return int(float(line.split()[-1]))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Shared]:
    root = tmp_path_factory.mktemp("shared")
    for name in ("good", "typo", "changes", "fails"):
        write_model(root, name)
    (root / "corrupt" / "1").mkdir(parents=True)
    (root / "corrupt" / "1" / "model.onnx").write_bytes(b"this is no graph")
    (root / "typo" / "interlace.toml").write_text("slo_ms = 50\nmax_bach = 4\n")
    server = Server(root, cache, "--allow-missing", "all")
    try:
        yield Shared(root, server.wait_ready())
    finally:
        server.kill()


def test_broken_models_say_why_and_the_rest_serves(shared: Shared) -> None:
    server = shared.server
    assert server.infer("good") == (200, server.infer("good")[1])
    status, index = server.call("POST", "/v2/repository/index", {})
    states = {entry["name"]: entry for entry in index}
    assert status == 200 and states["good"]["state"] == "READY"
    assert states["corrupt"]["state"] == states["typo"]["state"] == "UNAVAILABLE"
    assert "max_bach" in states["typo"]["reason"] and "max_batch" in states["typo"]["reason"]
    assert "model.onnx" in states["corrupt"]["reason"]
    assert "typo is not served" in server.text
    assert server.infer("corrupt")[0] == 404


@pytest.mark.parametrize("allowed", [False, True])
def test_with_exit_on_error_a_model_that_fails_ends_the_server(
    root: Path, start: Start, allowed: bool
) -> None:
    write_model(root, "good")
    write_model(root, "typo")
    (root / "typo" / "interlace.toml").write_text("max_bach = 4\n")
    server = start("--exit-on-error", *(("--allow-missing", "typo") if allowed else ()))
    if allowed:
        server.wait_ready()
        assert server.infer("good")[0] == 200
        return
    assert server.process.wait(100) == 1
    assert "typo: " in server.text and "max_bach" in server.text.splitlines()[-1]


def test_a_killed_worker_is_replaced_and_every_request_answered(harmed: Server) -> None:
    server, before = harmed, _restarts(harmed)
    traffic = Traffic(lambda: server.infer("m"))
    traffic.wait_for(10)
    os.kill(server.workers()[0], signal.SIGKILL)
    traffic.wait_for(60)
    seen = traffic.stop()
    assert {status for status, _ in seen} <= {200, 500}
    assert sum(status != 200 for status, _ in seen) <= 4, "at most a batch may be lost"
    assert seen[-1][0] == 200
    assert _restarts(server) == before + 1


def test_a_model_that_kills_its_worker_is_quarantined_and_the_rest_serves(harmed: Server) -> None:
    server = harmed
    traffic = Traffic(lambda: server.infer("calm"), threads=2)
    body = _until_aside(server, 2e6)
    traffic.wait_for(20)
    calm = traffic.stop()
    assert "crashed its worker 3 times" in body["error"]
    assert body["retry_after_ms"] > 0.0
    assert server.call("GET", "/v2/models/bomb/ready")[0] != 200
    assert 'interlace_model_ready{model="bomb",version="1"} 0' in _metric(server, "interlace_model")
    assert "quarantined bomb/1: it crashed its worker 3 times" in server.text
    assert calm[-1][0] == 200 and {s for s, _ in calm} <= {200, 500}
    _, index = server.call("POST", "/v2/repository/index", {})
    (entry,) = [e for e in index if e["name"] == "bomb"]
    assert entry["state"] == "UNAVAILABLE" and "crashed" in entry["reason"]
    server.wait_for("bomb/1 serves again", 60.0)
    assert server.infer("bomb")[0] == 200, "it comes back by itself"
    assert 'interlace_model_ready{model="bomb",version="1"} 1' in _metric(server, "interlace_model")
    _until_aside(server, 5e7)
    assert server.call("POST", "/v2/repository/models/bomb/load", {})[0] == 200
    assert server.infer("bomb")[0] == 200, "loading it again brings it back"


def _until_aside(server: Server, poison: float) -> dict[str, Any]:
    """Poison the model until it is quarantined; what its next caller is told.

    Killed by a signal that may come from outside, a first try is chance: the second one counts.
    """
    for turn in range(9):
        assert server.infer("bomb", poison + turn * 1e6)[0] != 200
        status, body = server.infer("bomb")
        if status == 503:
            return dict(body)
    raise AssertionError("nine poisoned requests, and it is not quarantined")


def test_inputs_that_killed_twice_are_refused_and_every_death_is_told(harmed: Server) -> None:
    server, before = harmed, _restarts(harmed)
    assert server.infer("poison", 2e6)[0] == 500
    for _ in range(5):
        status, body = server.infer("poison", 2e6)
        assert status == 500 and "ended the worker of 'poison' 2 times" in body["error"]
        assert server.infer("poison")[0] == 200, "others are served, and it is not quarantined"
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [A-Z]+ +"
    server.wait_for(
        rf"{stamp}worker \S+ of cpu0 died \(running batch \d+ of poison/1, 1 rows\): "
        rf"the worker process was killed by signal 9"
    )
    server.wait_for(r"1 rows, second try\): the worker process was killed")
    server.wait_for(rf"{stamp}worker \S+ serves again \d+\.\d\d s after it died")
    assert _restarts(server) == before + 2


def test_reload_under_traffic_loses_nothing_and_switches(shared: Shared) -> None:
    root, server = shared
    traffic = Traffic(lambda: server.infer("changes"))
    traffic.wait_for(5)
    write_model(root, "changes", factor=3.0)
    assert server.call("POST", "/v2/repository/models/changes/load", {})[0] == 200
    assert server.infer("changes")[1]["outputs"][0]["data"] == [3.0] * 4
    seen = traffic.stop()
    assert {status for status, _ in seen} == {200}
    answers = [body["outputs"][0]["data"][0] for _, body in seen]
    assert set(answers) <= {2.0, 3.0}


def test_a_failed_reload_leaves_the_old_version_serving(shared: Shared) -> None:
    root, server = shared
    code = "def create_model():\n    raise OSError('no')\n"
    (root / "fails" / "1" / "model.py").write_text(code)
    status, body = server.call("POST", "/v2/repository/models/fails/load", {})
    assert status != 200 and "OSError: no" in body["error"] and "/fails/1" in body["error"]
    assert server.infer("fails")[0] == 200


def test_hot_load_and_unload_under_traffic(shared: Shared) -> None:
    root, server = shared
    traffic = Traffic(lambda: server.infer("good"), threads=2)
    write_model(root, "guest", factor=5.0, extra=SLEEP)
    assert server.infer("guest")[0] == 404
    assert server.call("POST", "/v2/repository/models/guest/load", {})[0] == 200
    assert server.infer("guest")[1]["outputs"][0]["data"] == [5.0] * 4
    guests = Traffic(lambda: server.infer("guest"), threads=3)
    guests.wait_for(5)
    assert server.call("POST", "/v2/repository/models/guest/unload", {})[0] == 200
    assert {status for status, _ in guests.stop()} <= {200, 404}
    assert server.infer("guest")[0] == 404
    assert not [m for m in _metric(server, "interlace_model_resident_bytes") if "guest" in m]
    assert {status for status, _ in traffic.stop()} == {200}


def test_sigterm_answers_everything_in_flight(root: Path, start: Start) -> None:
    write_model(root, "m", extra=SLEEP)
    server = start().wait_ready()
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda: answers.append(server.infer("m")[0])) for _ in range(32)
    ]
    for thread in threads:
        thread.start()
    while server.call("GET", "/metrics")[1].count("interlace_requests_in_flight 0"):
        pass
    server.process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join(30.0)
    assert server.end() == 0
    # Those that arrived after the signal are told so; none hangs, none is cut off.
    assert len(answers) == 32 and set(answers) <= {200, 503}
    assert answers.count(200) >= 4
    assert server.workers() == []


def test_sigterm_while_models_are_opened_blames_none_of_them(root: Path, start: Start) -> None:
    write_model(root, "slow")
    model = root / "slow" / "1" / "model.py"
    hold = "import sys, time\nprint('slow opens', file=sys.stderr, flush=True)\ntime.sleep(60)\n"
    model.write_text(hold + model.read_text())
    server = start()
    server.wait_for("slow opens", 60.0)
    assert server.end() == 0
    assert "stopping" in server.text
    assert "ERROR" not in server.text and "Traceback" not in server.text


def test_a_busy_port_is_a_plain_error(shared: Shared, root: Path, cache: Path) -> None:
    write_model(root, "m")
    server = shared.server
    argv = Server(root, cache, "--http-port", str(server.http_port))
    try:
        assert argv.process.wait(60.0) == 1
        argv.wait_for(rf"error: cannot listen for HTTP on 127.0.0.1:{server.http_port}", 5.0)
        assert "Traceback" not in argv.text
    finally:
        argv.kill()


def test_readiness_is_per_server_and_per_model(shared: Shared) -> None:
    server = shared.server
    assert server.call("GET", "/v2/health/ready")[0] == 200
    assert server.call("GET", "/v2/models/good/ready")[0] == 200
    assert server.call("GET", "/v2/models/nobody/ready")[0] != 200


def test_after_sigterm_connections_are_told_to_close_and_served_until_then(
    root: Path, start: Start
) -> None:
    write_model(root, "m")
    server = start("--drain-delay-s", "30").wait_ready()
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1.0] * 4}
    body = json.dumps({"inputs": [tensor]})
    kept = [http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30) for _ in range(5)]

    def ask(connection: http.client.HTTPConnection) -> tuple[int, str | None]:
        connection.request("POST", "/v2/models/m/infer", body)
        response = connection.getresponse()
        response.read()
        return response.status, response.getheader("Connection")

    assert [ask(connection) for connection in kept] == [(200, None)] * 5
    server.process.send_signal(signal.SIGTERM)
    server.wait_for("serving on for 30 s")
    assert server.call("GET", "/v2/health/ready")[0] == 503
    assert [ask(connection) for connection in kept] == [(200, "close")] * 5
    assert server.infer("m")[0] == 200
    assert server.end() == 0, "a second signal ends the wait"
