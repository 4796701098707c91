"""A server under test: started on given cores, watched, measured, stopped by its own pid."""

import os
import resource
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import processes
from bench.peers import once, wire
from bench.peers.table import Peer, environment
from interlace.load.connections import Call

PORTS = (wire.HTTP_PORT, wire.GRPC_PORT, wire.METRICS_PORT)


class NotReadyError(RuntimeError):
    """A server that did not answer in time, or died."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Where peers and logs are, which cores the server gets (as taskset has it), its nice value."""

    home: Path
    cores: str = "0"
    nice: int = 0


class Server:
    """One start of one peer."""

    def __init__(self, name: str, peer: Peer, bench: Bench) -> None:
        self.name, self.peer, self._bench = name, peer, bench
        self.mark = f"INTERLACE_BENCH_{uuid.uuid4().hex[:12]}"
        _wait_free_ports()
        logs = bench.home / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        self.log = logs / f"{name}.log"
        self._began_s = time.perf_counter()
        self.startup_s = 0.0
        self.stopped: dict[str, Any] = {}
        prefix = ["nice", "-n", str(bench.nice), "taskset", "-c", bench.cores]
        env = {**environment(bench.home, peer), self.mark: "1"}
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                prefix + list(peer.command), env=env, cwd=peer.folder, stdout=out, stderr=out,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        processes.raise_priority(self.process.pid, bench.nice)

    def wait_ready(self, checks: list[Call], limit_s: float = 150.0) -> None:
        """Return when every check was answered 200; sets ``startup_s``.

        Raises:
            NotReadyError: it died or took too long.
        """
        last: object = None
        for check in checks:
            while True:
                late = time.perf_counter() - self._began_s > limit_s
                if late or self.process.poll() is not None:
                    code = self.process.poll()
                    raise NotReadyError(f"{self.name}: exit {code}, last {last}, see {self.log}")
                try:
                    status, body = once.ask(check)
                    last = status, body[:300]
                    if status == 200:
                        break
                except OSError as error:
                    last = repr(error)
                time.sleep(0.02)
        self.startup_s = time.perf_counter() - self._began_s
        for pid in self.pids():
            processes.raise_priority(pid, self._bench.nice)

    def pids(self) -> list[int]:
        return processes.marked(self.mark)

    def stop(self, wait_s: float = 20.0) -> dict[str, Any]:
        """SIGTERM, then SIGKILL for what is left; how it went."""
        began = time.perf_counter()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(wait_s)
        seconds, code, left = time.perf_counter() - began, self.process.poll(), self.pids()
        for sent in (signal.SIGTERM, signal.SIGKILL):
            end = time.monotonic() + 5
            for pid in self.pids():
                _send(pid, sent)
            while self.pids() and time.monotonic() < end:
                time.sleep(0.1)
        self.process.poll()
        return {"exit": code, "seconds": round(seconds, 2), "left_processes": len(left)}


@contextmanager
def started(
    name: str,
    peer: Peer,
    bench: Bench,
    checks: list[Call],
    patience_s: float,
    limit_s: float = 150.0,
) -> Iterator[Server]:
    """A server that has answered every check, on a machine that was quiet if it ever was.

    Raises:
        NotReadyError: it died or took too long.
    """
    processes.wait_quiet(patience_s)
    server = Server(name, peer, bench)
    try:
        server.wait_ready(checks, limit_s)
        yield server
    finally:
        server.stopped = server.stop()


def claim(cores: set[int], nice: int) -> None:
    """Put this process, which makes the load, on its cores, with its priority."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(16384, most), most))
    if cores:
        os.sched_setaffinity(0, cores)
    os.nice(nice)
    processes.raise_priority("self", nice)


class Watch:
    """CPU seconds of a server, of this process and of everybody else, between two moments."""

    def __init__(self, server: Server) -> None:
        self._pids = server.pids()
        self.mark()

    def mark(self) -> None:
        """The first moment."""
        self._at = time.perf_counter()
        self._machine = processes.machine_cpu_s()
        self._server = processes.cpu_s(self._pids)
        self._own = time.process_time()

    def read(self) -> dict[str, float]:
        """The second moment: server CPU seconds, and how many CPUs others used."""
        seconds = time.perf_counter() - self._at
        server = processes.cpu_s(self._pids) - self._server
        own = time.process_time() - self._own
        others = processes.machine_cpu_s() - self._machine - server - own
        return {
            "server_cpu_s": round(server, 3),
            "others_cpus": round(max(0.0, others / seconds), 2),
        }


def _wait_free_ports() -> None:
    end = time.monotonic() + 20.0
    for port in PORTS:
        while True:
            with socket.socket() as probe:
                probe.settimeout(0.2)
                if probe.connect_ex(("127.0.0.1", port)) != 0:
                    break
            if time.monotonic() > end:
                raise NotReadyError(f"port {port} is taken")
            time.sleep(0.1)


def _send(pid: int, sent: signal.Signals) -> None:
    try:
        os.kill(pid, sent)
    except ProcessLookupError:
        return
