"""The attacks see what must never be: servers here answer wrongly, late, or not at all."""

import json
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from bench.attack import soak
from bench.attack.attack import Result
from bench.attack.calls import HttpCaller
from bench.attack.repository import write_model
from bench.attack.run import ATTACKS, line
from bench.attack.stand import Stand
from bench.attack.traffic import Target, Traffic
from bench.harness import processes


class _Multiplies(BaseHTTPRequestHandler):
    """Answers as a server should, times ``factor``."""

    protocol_version = "HTTP/1.1"
    factor = 2.0

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        data = [self.factor * value for value in asked["inputs"][0]["data"]]
        said = json.dumps({"outputs": [{"name": "y", "data": data}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: Any) -> None:
        return


class _Hangs(socketserver.BaseRequestHandler):
    """Reads, and says nothing."""

    def handle(self) -> None:
        while self.request.recv(4096):
            continue


class _Closes(socketserver.BaseRequestHandler):
    """Reads once, and closes."""

    def handle(self) -> None:
        self.request.recv(4096)


class _Web(ThreadingHTTPServer):
    daemon_threads = False  # closing waits for them: no socket is left behind


@contextmanager
def serving(server: socketserver.TCPServer) -> Iterator[int]:
    """The server's port, while a thread serves it."""
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]  # type: ignore[misc]
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(("factor", "said"), [(2.0, "200"), (3.0, "wrong")])
def test_an_output_of_another_is_wrong(factor: float, said: str) -> None:
    with serving(_Web(("127.0.0.1", 0), _Multiplies)) as port:
        caller = HttpCaller(port, 10.0)
        assert caller.ask("m", factor, [1.0, 2.0, 3.0, 4.0]) == said
        caller.close()


@pytest.mark.parametrize(("handler", "said"), [(_Hangs, "hung"), (_Closes, "lost")])
def test_no_answer_is_hung_or_lost(
    handler: type[socketserver.BaseRequestHandler], said: str
) -> None:
    with serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler)) as port:
        caller = HttpCaller(port, 0.3)
        assert caller.ask("m", 2.0, [1.0, 2.0, 3.0, 4.0]) == said


def test_traffic_counts_bad_answers_and_the_time_to_the_first_good_one() -> None:
    with (
        serving(_Web(("127.0.0.1", 0), _Multiplies)) as port,
        Traffic((port, 0), [Target("right", 2.0), Target("other", 5.0)], (2, 0)) as traffic,
    ):
        began_s = time.monotonic()
        while len(traffic.answers) < 40 and time.monotonic() - began_s < 30:
            time.sleep(0.02)
    statuses = traffic.figures()["statuses"]
    assert set(statuses) == {"200", "wrong"}
    assert traffic.bad() == {"wrong": statuses["wrong"]}
    assert traffic.first_good_after_s(began_s, "right") is not None
    assert traffic.first_good_after_s(time.monotonic()) is None


@pytest.mark.parametrize(("slope", "flat"), [(0.0, True), (1.0, False)])
def test_what_grows_is_not_flat(slope: float, flat: bool) -> None:
    names = ("rss_mb", "main_descriptors", "grpc_descriptors")
    points = [{name: 100.0 + slope * step for name in names} for step in range(80)]
    result = Result(0)
    soak._flat(result, points)
    assert (+result.broken == {}) is flat


def test_names_are_told_apart_and_lines_say_what_was_seen() -> None:
    assert len({one.name for one in ATTACKS}) == len(ATTACKS)
    row = {"attack": "x", "tried": 3, "seconds": 1.0, "broken": {"500": 2}}
    assert "500 x2" in line(row)
    quiet = {"quiet": {"p99_ms": 2.0}, "bystander": {"p99_ms": 3.0}}
    assert "x1.5" in line({**row, **quiet, "broken": {}})


def test_a_stand_tells_the_fork_server_from_its_workers(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "m")
    stand = Stand(tmp_path / "models", tmp_path / "profiles")
    try:
        stand.wait_ready()
        assert {processes.parent(pid) for pid in stand.workers()} == {stand.fork_server_pid()}
    finally:
        assert stand.stop()["left_processes"] == 0
