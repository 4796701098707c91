"""Whole servers on a fake GPU: HTTP in, graphs on partitions, outputs back, a GPU that fails."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.device.cuda.mps_control import control_program
from tests.serve.server import Server, Traffic, write_model

Start = Callable[..., Server]


class GpuServer(Server):
    code = "from tests.device.cuda.fakeserve import run; run()"

    def gpu_processes(self) -> list[int]:
        """Process ids of those that hold the GPU: the server's children with that name."""
        out = subprocess.run(
            ["ps", "-eo", "pid,ppid,comm"], capture_output=True, text=True, check=True
        ).stdout
        rows = [line.split() for line in out.splitlines()[1:]]
        return [
            int(pid) for pid, ppid, name in rows if (int(ppid), name) == (self.process.pid, "gpu0")
        ]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    write_model(folder, "twice", 2.0)
    write_model(folder, "thrice", 3.0)
    return folder


@pytest.fixture
def start(root: Path, tmp_path: Path) -> Iterator[Start]:
    servers: list[Server] = []

    def begin(*options: str) -> Server:
        servers.append(GpuServer(root, tmp_path, *options))
        return servers[-1]

    yield begin
    for server in servers:
        server.kill()


def outputs(server: Server, name: str, value: float) -> list[float]:
    status, body = server.infer(name, value)
    assert status == 200, body
    found: list[float] = body["outputs"][0]["data"]
    return found


@pytest.mark.parametrize("device", ["green", "mps"])
def test_two_models_are_served(
    start: Start, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, told = control_program(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    server = start("--device", device).wait_ready()
    for value in (1.0, 2.5):
        assert outputs(server, "twice", value) == [2 * value] * 4
        assert outputs(server, "thrice", value) == [3 * value] * 4
    busy = Traffic(lambda: server.infer("thrice", 7.0))
    also = Traffic(lambda: server.infer("twice", 7.0))
    busy.wait_for(50)
    also.wait_for(50)
    for traffic, factor in ((busy, 3.0), (also, 2.0)):
        seen = traffic.stop()
        assert {status for status, _ in seen} == {200}
        assert {tuple(body["outputs"][0]["data"]) for _, body in seen} == {(7.0 * factor,) * 4}
    assert server.stop() == 0, server.text
    assert "Traceback" not in server.text
    said = [line.split()[0] for line in told.read_text().splitlines()] if told.exists() else []
    assert said == (
        ["-d", "get_server_list", "quit"] if device == "mps" else []
    )  # started, and stopped again


def test_a_gpu_process_that_dies_is_replaced_and_every_request_answered(start: Start) -> None:
    server = start("--device", "green").wait_ready()
    assert isinstance(server, GpuServer)
    (before,) = server.gpu_processes()
    traffic = Traffic(lambda: server.infer("twice", 5.0, slo_ms=20_000.0))
    traffic.wait_for(20)
    os.kill(before, signal.SIGKILL)
    traffic.wait_for(20)
    seen = traffic.stop()
    (after,) = server.gpu_processes()
    assert after != before
    good = [body for status, body in seen if status == 200]
    assert len(good) >= 40
    assert {tuple(body["outputs"][0]["data"]) for body in good} == {(10.0,) * 4}
    assert outputs(server, "thrice", 1.0) == [3.0] * 4
    assert server.stop() == 0, server.text


def test_models_come_and_go_and_memory_is_shown(start: Start, root: Path) -> None:
    server = start("--device", "green").wait_ready()
    assert server.call("POST", "/v2/repository/models/twice/unload")[0] == 200
    found = server.wait_for(
        r"twice/1#0 unloaded: ([\d.]+) MiB free before, ([\d.]+) MiB free after"
    )
    assert float(found[2]) > float(found[1])
    assert server.infer("twice")[0] != 200
    assert outputs(server, "thrice", 2.0) == [6.0] * 4
    assert server.call("POST", "/v2/repository/models/twice/load")[0] == 200
    assert outputs(server, "twice", 2.0) == [4.0] * 4
    assert server.stop() == 0


def test_without_a_gpu_it_is_said(root: Path, tmp_path: Path) -> None:
    server = Server(root, tmp_path, "--device", "green")
    try:
        server.wait_for(r"--device green: there is no GPU to use")
        assert server.process.wait(30.0) != 0
    finally:
        server.kill()
