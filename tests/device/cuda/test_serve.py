"""Whole servers on a fake GPU: HTTP in, graphs on partitions, outputs back, a GPU that fails."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.attack.repository import write_model
from tests.device.cuda.stand_ins import control_program
from tests.serve.server import HASTE, Server, Traffic
from tests.server.fakes import wait_until

#: A process with torch may take long to start where others do, too.
RESTART_S = 120.0


class GpuServer(Server):
    code = HASTE + "from tests.device.cuda.stand_ins import run; run()"
    answer_s = RESTART_S + 30.0

    def gpu_processes(self) -> list[int]:
        """Process ids of those that hold the GPU: the server's children with that name."""
        out = subprocess.run(
            ["ps", "-eo", "pid,ppid,comm"], capture_output=True, text=True, check=True
        ).stdout
        rows = [line.split() for line in out.splitlines()[1:]]
        return [
            int(pid) for pid, ppid, name in rows if (int(ppid), name) == (self.process.pid, "gpu0")
        ]


def models(folder: Path) -> Path:
    """A folder with two models."""
    root = folder / "models"
    root.mkdir()
    write_model(root, "twice", 2.0)
    write_model(root, "thrice", 3.0)
    return root


@pytest.fixture(scope="module")
def green(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuServer]:
    """One server on green contexts for all that can share it: it starts in many seconds."""
    folder = tmp_path_factory.mktemp("green")
    server = GpuServer(models(folder), folder, "--device", "green")
    try:
        server.wait_ready()
        yield server
        assert server.end() == 0, server.text
        assert "Traceback" not in server.text
    finally:
        server.kill()


def outputs(server: Server, name: str, value: float) -> list[float]:
    status, body = server.infer(name, value)
    assert status == 200, body
    found: list[float] = body["outputs"][0]["data"]
    return found


def serves_both(server: Server) -> None:
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


def test_two_models_are_served(green: GpuServer) -> None:
    serves_both(green)


def test_two_models_are_served_under_mps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = control_program(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    server = GpuServer(models(tmp_path), tmp_path, "--device", "mps")
    try:
        serves_both(server.wait_ready())
        assert server.end() == 0, server.text
    finally:
        server.kill()
    assert "Traceback" not in server.text
    lines = [line.split() for line in told.read_text().splitlines()]
    ours = [line[0] for line in lines if line[-1] != "-"]  # not what other tests left behind
    assert ours == ["-d", "get_server_list", "quit"]  # the daemon is started, and stopped again


def test_lanes_that_overlap_are_served(tmp_path: Path) -> None:
    """Each model has lanes of its own, together more than the GPU; batches are on free SMs."""
    system = "tests.device.cuda.overlapping:SYSTEM"
    server = GpuServer(models(tmp_path), tmp_path, "--device", "green", "--system", system)
    try:
        serves_both(server.wait_ready())
        shares = [int(share) for share in re.findall(r"(\d+) %", server.text)]
        assert sum(shares) > 100, server.text
        assert server.end() == 0, server.text
    finally:
        server.kill()
    assert "Traceback" not in server.text


def test_models_come_and_go_and_memory_is_shown(green: GpuServer) -> None:
    assert green.call("POST", "/v2/repository/models/twice/unload")[0] == 200
    found = green.wait_for(r"twice/1#0 unloaded: ([\d.]+) MiB free before, ([\d.]+) MiB free after")
    assert float(found[2]) > float(found[1])
    assert green.infer("twice")[0] != 200
    assert outputs(green, "thrice", 2.0) == [6.0] * 4
    assert green.call("POST", "/v2/repository/models/twice/load")[0] == 200
    assert outputs(green, "twice", 2.0) == [4.0] * 4


def test_a_gpu_process_that_dies_is_replaced_and_every_request_answered(green: GpuServer) -> None:
    def good() -> list[Any]:
        return [body for status, body in traffic.seen if status == 200]

    (before,) = green.gpu_processes()
    traffic = Traffic(lambda: green.infer("twice", 5.0, slo_ms=1e3 * RESTART_S))
    wait_until(lambda: len(good()) >= 20, RESTART_S)
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: green.gpu_processes() not in ([], [before]), RESTART_S)
    known = len(good())
    wait_until(lambda: len(good()) >= known + 20, RESTART_S)
    traffic.stop(RESTART_S)
    (after,) = green.gpu_processes()
    assert after != before
    wait_until(lambda: green.infer("thrice", 1.0)[0] == 200, RESTART_S)
    assert {tuple(body["outputs"][0]["data"]) for body in good()} == {(10.0,) * 4}
    assert outputs(green, "thrice", 1.0) == [3.0] * 4


def test_without_a_gpu_it_is_said(tmp_path: Path) -> None:
    server = Server(models(tmp_path), tmp_path, "--device", "green")
    try:
        server.wait_for(r"--device green: there is no GPU to use")
        assert server.process.wait(30.0) != 0
    finally:
        server.kill()
