"""A server in processes of its own: started on free ports, looked at from outside, ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from bench.harness import processes
from bench.peers import once

_READY: Final = r"ready: HTTP on (\d+), gRPC on (\d+), metrics on (\d+)"


class NotReadyError(RuntimeError):
    """The server ended or was not ready in time; the message holds what it printed last."""


class Stand:
    """`interlace serve` over a repository; its output, its processes, what they hold.

    Profiles are kept in ``cache``; ``options`` are more flags. ``code`` is what Python runs.
    """

    code = "from interlace.cli.main import main; main()"

    ready = _READY

    def __init__(self, root: Path, cache: Path, *options: str) -> None:
        ports = ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
        self._start("serve", str(root), *ports, "--profiles", str(cache), *options)

    def _start(self, *arguments: str) -> None:
        self._mark = f"INTERLACE_ATTACK_{uuid.uuid4().hex[:12]}"
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.code, *arguments],
            env={**os.environ, self._mark: "1", "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self.http_port = self.grpc_port = self.metrics_port = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as said:
            self.lines.extend(line.rstrip() for line in said)

    @property
    def text(self) -> str:
        """All that it has printed."""
        return "\n".join(self.lines)

    def wait_ready(self, limit_s: float = 180.0) -> Self:
        """Return when the server has said its ports.

        Raises:
            NotReadyError: it ended, or took longer.
        """
        found = self.wait_for(self.ready, limit_s)
        self.http_port, self.grpc_port, self.metrics_port = (*map(int, found.groups()), 0)[:3]
        return self

    def wait_for(self, pattern: str, limit_s: float = 90.0) -> re.Match[str]:
        """Wait until it prints that.

        Raises:
            NotReadyError: it ended, or took longer.
        """
        ends_s = time.monotonic() + limit_s
        while time.monotonic() < ends_s:
            if found := re.search(pattern, self.text):
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        said = " | ".join(self.lines[-6:])
        status = f"exit {self.process.poll()} after {limit_s:g} s at most"
        raise NotReadyError(f"{status}, {pattern!r} was not printed: {said}"[:900])

    def pids(self) -> list[int]:
        return processes.marked(self._mark)

    def workers(self) -> list[int]:
        """Processes in which models run: named after their partition, as ``cpu0.p1``."""
        return [pid for pid in self.pids() if re.match(r"\w+\d+\.p\d+", _name(pid))]

    def fork_server_pid(self) -> int:
        """The process that workers are forked from."""
        own = set(self.workers())
        return next(
            pid
            for pid in self.pids()
            if pid not in own and "fork_server import main" in _command(pid)
        )

    def held(self) -> dict[str, float]:
        """What the server holds: memory of all its processes, descriptors and mapped arenas."""
        pids = self.pids()
        return {
            **processes.memory(pids),
            "main_pss_mb": processes.memory([self.process.pid])["pss_mb"],
            "main_descriptors": _descriptors(self.process.pid),
            "threads": sum(_entries(f"/proc/{pid}/task") for pid in pids),
        }

    def get(self, path: str, metrics: bool = False) -> tuple[int, bytes]:
        """A GET on the HTTP or the metrics port.

        Raises:
            OSError: nobody answers.
        """
        return once.get(self.metrics_port if metrics else self.http_port, path)

    def stop(self, limit_s: float = 40.0) -> dict[str, Any]:
        """SIGTERM, then SIGKILL for what is left; exit code, seconds and what was left behind."""
        began_s = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(limit_s)
        code, took_s = self.process.poll(), time.monotonic() - began_s
        time.sleep(0.3)
        left = self.pids()
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)
        self._reader.join(10)
        return {"exit": code, "exit_s": round(took_s, 2), "left_processes": len(left)}


def _command(pid: int) -> str:
    return _text(f"/proc/{pid}/cmdline").replace("\0", " ")


def _name(pid: int) -> str:
    return _text(f"/proc/{pid}/comm").strip()


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _descriptors(pid: int) -> int:
    return _entries(f"/proc/{pid}/fd") if pid else 0


def _entries(folder: str) -> int:
    try:
        return len(os.listdir(folder))
    except OSError:
        return 0
