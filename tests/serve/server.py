"""A whole server as a subprocess on free ports, and a small client."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

TIMES = """
import time
import torch

INPUTS = {{"x": ("FP32", (4,))}}
OUTPUTS = {{"y": ("FP32", (4,))}}
OPTIMISE = False


class Times(torch.nn.Module):
    def forward(self, x):
        {extra}
        return x * {factor}


def create_model():
    return Times()
"""
#: Kills its own process for one poisonous input; samples never hold such a value.
CRASH = "import os; (x.max() > 1e6) and os.kill(os.getpid(), 9)"
SLEEP = "time.sleep(0.03)"


def write_model(
    root: Path, name: str, factor: float = 2.0, extra: str = "pass", slo_ms: float = 2_000.0
) -> None:
    """A Python-factory model that multiplies, in a repository."""
    folder = root / name / "1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.py").write_text(TIMES.format(factor=factor, extra=extra))
    (root / name / "interlace.toml").write_text(f"slo_ms = {slo_ms}\nmax_batch = 4\n")


class Server:
    """`interlace serve` until ``stop``; what it prints is kept. ``code`` is the command."""

    code = "from interlace.cli.main import main; main()"
    answer_s = 30.0  #: how long a request may take

    def __init__(self, root: Path, cache: Path, *options: str) -> None:
        argv = [sys.executable, "-c", self.code, "serve"]
        ports = ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
        self.process = subprocess.Popen(
            [*argv, str(root), "--profiles", str(cache / "profiles"), *ports, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.port = 0
        self.grpc_port = 0

    def wait_ready(self, limit_s: float = 90.0) -> Server:
        found = self.wait_for(r"ready: HTTP on (\d+), gRPC on (\d+)", limit_s)
        self.port, self.grpc_port = int(found[1]), int(found[2])
        return self

    def wait_for(self, pattern: str, limit_s: float = 90.0) -> re.Match[str]:
        ends_s = time.monotonic() + limit_s
        while time.monotonic() < ends_s:
            found = re.search(pattern, self.text)
            if found:
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError(f"{pattern!r} was not printed:\n{self.text}")

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.answer_s)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data)
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        is_json = "json" in (response.getheader("Content-Type") or "")
        return response.status, json.loads(text) if is_json and text else text

    def infer(self, model: str, value: float = 1.0, **parameters: float) -> tuple[int, Any]:
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [value] * 4}
        body: Mapping[str, object] = {"inputs": [tensor], "parameters": parameters}
        return self.call("POST", f"/v2/models/{model}/infer", body)

    def workers(self) -> list[int]:
        """Process ids of the partitions' workers: the children of the fork server."""
        out = subprocess.run(["ps", "-eo", "pid,ppid"], capture_output=True, text=True, check=True)
        pairs = [tuple(map(int, line.split())) for line in out.stdout.splitlines()[1:]]
        children = [pid for pid, parent in pairs if parent == self.process.pid]
        return [pid for pid, parent in pairs if parent in children]

    def stop(self, limit_s: float = 40.0) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(limit_s)
        self._reader.join(10.0)
        return code

    def kill(self) -> None:
        """However a test ended, nothing of the server stays."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10.0)
        self._reader.join(10.0)
        assert not self._reader.is_alive(), "a process of the server outlived it"
        if self.process.stdout is not None:
            self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)


class Traffic:
    """Threads that call one model without a pause; ``stop`` gives every (status, body)."""

    def __init__(self, call: Callable[[], tuple[int, Any]], threads: int = 4) -> None:
        self.seen: list[tuple[int, Any]] = []
        self._call = call
        self._on = True
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def wait_for(self, count: int, limit_s: float = 30.0) -> None:
        """Until that many more answers have come."""
        goal, ends_s = len(self.seen) + count, time.monotonic() + limit_s
        while len(self.seen) < goal:
            assert time.monotonic() < ends_s, f"only {len(self.seen)} of {goal} answers came"
            time.sleep(0.005)

    def stop(self, limit_s: float = 35.0) -> list[tuple[int, Any]]:
        self._on = False
        for thread in self._threads:
            thread.join(limit_s)
            assert not thread.is_alive(), "a request was never answered"
        return self.seen

    def _run(self) -> None:
        while self._on:
            self.seen.append(self._call())
