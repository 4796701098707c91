"""Nodes that simulate GPUs, and a controller with its router, as processes of their own."""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import numpy as np

from interlace.device.simulated.answers import request_digest

KEY = "secret"


def free_ports(count: int) -> int:
    """The first of so many ports in a row that nobody has, nor gets by connecting."""
    while True:
        first = random.randrange(10_000, 32_000)  # Linux gives those who connect higher ones
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first


class Process:
    """`interlace ...` until it is killed; what it says goes to a file."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        self.log = folder / f"{name}.log"
        with self.log.open("ab") as out:
            argv = [sys.executable, "-m", "interlace", *arguments]
            self._process = subprocess.Popen(argv, stdout=out, stderr=out)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Its exit status."""
        self.send(signal.SIGCONT)
        self.send(number)
        return self._process.wait(60)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def lives(self) -> bool:
        return self._process.poll() is None


class FleetStand:
    """Nodes by name, and one controller at a time."""

    def __init__(self, folder: Path, models: Path, nodes: Mapping[str, str]) -> None:
        """``nodes`` are kinds of simulated accelerator by name; "cpu" has this machine's cores."""
        self.folder = folder
        self._kinds = nodes
        self._models = models
        key = folder / "key"
        key.write_text(KEY)
        self._key = str(key)
        self.ports = {name: free_ports(3) for name in nodes}
        self.port = free_ports(2)
        self.nodes = {name: self.start(name) for name in nodes}
        self.controller = self.command()

    def start(self, name: str) -> Process:
        """A node, told nothing yet."""
        port, kind = self.ports[name], self._kinds[name]
        simulated = ("simulated", "--gpu", kind, "--gpus", "1")
        return Process(
            self.folder, name, "serve", str(self._models), "--device",
            *(("cpu",) if kind == "cpu" else simulated), "--assigned", "--node", name,
            "--admin-key-file", self._key,
            "--http-port", str(port), "--grpc-port", str(port + 1), "--metrics-port", str(port + 2),
            "--profiles", str(self.folder / "profiles"),
        )  # fmt: skip

    def command(self, *options: str) -> Process:
        """A controller of all nodes, with its router."""
        named = [f"{name}=127.0.0.1:{port}" for name, port in self.ports.items()]
        return Process(
            self.folder, "controller", "fleet", "serve", str(self._models),
            "--nodes", ",".join(named), "--http-port", str(self.port), "--grpc-port",
            str(self.port + 1), "--admin-key-file", self._key, *options,
        )  # fmt: skip

    def status(self) -> Any:
        return get(f"http://127.0.0.1:{self.port}/v2/fleet")

    def serving(self) -> set[str]:
        return serving(self.port)

    def ask(self, model: str, value: float, port: int = 0) -> str:
        """One inference of `tagger`'s form: the digest that answers; "" if it was refused."""
        data = np.full(16, value, np.float32)
        body = {"inputs": [{"name": "features", "datatype": "FP32", "shape": [1, 16],
                            "data": data.tolist()}]}  # fmt: skip
        url = f"http://127.0.0.1:{port or self.port}/v2/models/{model}/infer"
        try:
            answer = get(url, json.dumps(body).encode())
        except URLError:
            return ""
        return str(answer["outputs"][0]["data"][0])

    def expected(self, model: str, value: float) -> str:
        """What answers that inference, and no other."""
        return request_digest(model, [("features", np.full(16, value, np.float32).tobytes())]).hex()

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in self.folder.glob("*.log"))

    def close(self) -> None:
        for process in (*self.nodes.values(), self.controller):
            if process.lives:
                process.end()


def serving(port: int) -> set[str]:
    """Nodes that carry out what the controller at that port told them."""
    return settled(get(f"http://127.0.0.1:{port}/v2/fleet")["nodes"])


def settled(nodes: Mapping[str, Any]) -> set[str]:
    """Those that have carried out what they were told, by what their controller says of them."""
    return {
        name
        for name, node in nodes.items()
        if node["assigned"] and node["state"] and node["state"]["settled"]
        and node["state"]["revision"] == node["assigned"]["revision"]
    }  # fmt: skip


def get(url: str, body: bytes | None = None) -> Any:
    with urlopen(Request(url, body), timeout=30) as reply:
        return json.loads(reply.read())


def until(what: Callable[[], bool], patience_s: float = 300.0) -> None:
    """Wait until it holds; what cannot be asked yet does not."""
    ends_s = time.monotonic() + patience_s
    while True:
        try:
            if what():
                return
        except (URLError, OSError, KeyError):
            pass
        assert time.monotonic() < ends_s, "it did not come to pass"
        time.sleep(0.05)
