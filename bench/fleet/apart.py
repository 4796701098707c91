"""Nodes in network namespaces of their own, on a bridge from which each can be cut off (Linux)."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

from interlace.core.user_errors import UserError

_NEW_NETWORK: Final = 0x40000000  # CLONE_NEWNET of unshare(2)
_KEY: Final = "secret"
_PORT: Final = 8000
#: Waits until the machine's own side of the link is there, since the node listens on it.
_START: Final = (
    'while ! ip -4 addr show dev eth0 2>&1 | grep -q inet; do sleep 0.02; done; exec "$@"'
)


def own_network() -> None:
    """Have this process and those that it starts talk over a bridge of their own.

    Raises:
        UserError: the system does not let it (root may).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_NETWORK):
        why = os.strerror(ctypes.get_errno())
        raise UserError(f"no network namespace: {why}; run this as root")
    _ip("link set lo up")
    _ip("link add br0 type bridge")
    _ip("addr add 10.9.0.1/24 dev br0")
    _ip("link set br0 up")


class ApartNode:
    """One `interlace serve --assigned` on a machine of its own, as far as the network goes."""

    def __init__(self, folder: Path, number: int) -> None:
        self.name, self.host = f"n{number}", f"10.9.0.{number + 2}"
        self._link = f"v{number}"
        self._folder = folder
        self._process = self._started()

    @property
    def address(self) -> str:
        """As `--nodes` takes it."""
        return f"{self.name}={self.host}:{_PORT}"

    def lose(self, kind: str) -> None:
        """``die``, ``hang`` or ``cut`` off."""
        match kind:
            case "die":
                self.end()
            case "hang":
                self._process.send_signal(signal.SIGSTOP)
            case _:
                _ip(f"link set {self._link} nomaster")

    def come_back(self, kind: str) -> None:
        """Be there again after that loss."""
        match kind:
            case "die":
                self._process = self._started()
            case "hang":
                self._process.send_signal(signal.SIGCONT)
            case _:
                _ip(f"link set {self._link} master br0")

    def end(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()

    @property
    def _hardware_address(self) -> str:
        """A machine keeps it, or others send to the one that they know for up to 45 s."""
        return f"02:00:0a:09:00:{int(self.host.rpartition('.')[2]):02x}"

    def _started(self) -> subprocess.Popen[bytes]:
        ports = "--http-port", str(_PORT), "--grpc-port", "8001", "--metrics-port", "8002"
        served = [
            sys.executable, "-m", "interlace", "serve", str(self._folder / "models"), "--assigned",
            "--device", "simulated", "--gpu", "h100", "--gpus", "1", "--node", self.name,
            "--admin-key-file", key_file(self._folder), "--host", self.host, *ports,
            "--profiles", str(self._folder / "profiles"),
        ]  # fmt: skip
        process = _logged(
            self._folder, self.name, ["unshare", "-n", "sh", "-c", _START, "-", *served]
        )
        # The namespace is there once `unshare` has become the shell that waits.
        while (
            Path(f"/proc/{process.pid}/ns/net").readlink() == Path("/proc/self/ns/net").readlink()
        ):
            time.sleep(0.01)
        subprocess.run(["ip", "link", "del", self._link], check=False, stderr=subprocess.DEVNULL)
        peer = f"name eth0 address {self._hardware_address} netns {process.pid}"
        _ip(f"link add {self._link} type veth peer {peer}")
        _ip(f"link set {self._link} master br0 up")
        inside = f"ip link set lo up; ip link set eth0 up; ip addr add {self.host}/24 dev eth0"
        subprocess.run(["nsenter", "-t", str(process.pid), "-n", "sh", "-c", inside], check=True)
        return process


class ApartFleet:
    """Nodes, and one controller with its router on this side of the bridge."""

    def __init__(self, folder: Path, nodes: int) -> None:
        """``folder`` holds the models."""
        Path(key_file(folder)).write_text(_KEY)
        self.nodes = {one.name: one for one in (ApartNode(folder, n) for n in range(nodes))}
        named = ",".join(one.address for one in self.nodes.values())
        self._controller = _logged(
            folder,
            "controller",
            [sys.executable, "-m", "interlace", "fleet", "serve", str(folder / "models"), "--nodes",
             named, "--admin-key-file", key_file(folder), "--http-port", str(_PORT), "--host",
             "0.0.0.0"],
        )  # fmt: skip

    def status(self) -> Any:
        """What the controller says of the fleet."""
        return json.loads(read("/v2/fleet"))

    def follow_the_plan(self) -> set[str]:
        """Nodes that have loaded what they were told."""
        return following(self.status())

    def lost(self) -> int:
        """Requests that the router has seen lost at a node."""
        lines = read("/metrics").decode().splitlines()
        return sum(int(x.split()[-1]) for x in lines if x.startswith("interlace_router_lost_total"))

    def close(self) -> None:
        """End everything."""
        self._controller.kill()
        self._controller.wait()
        for node in self.nodes.values():
            node.end()


def following(status: Any) -> set[str]:
    """Nodes of this status that have loaded what they were told."""
    return {
        name
        for name, node in status["nodes"].items()
        if node["assigned"] and node["state"] and node["state"]["settled"]
        and node["state"]["revision"] == node["assigned"]["revision"]
    }  # fmt: skip


def read(path: str) -> bytes:
    """What the controller's process answers."""
    with urllib.request.urlopen(f"http://127.0.0.1:{_PORT}{path}", timeout=10.0) as answer:
        return bytes(answer.read())


def key_file(folder: Path) -> str:
    """The file of the admin key."""
    return str(folder / "key")


def _logged(folder: Path, name: str, argv: list[str]) -> subprocess.Popen[bytes]:
    with (folder / f"{name}.log").open("ab") as out:
        return subprocess.Popen(argv, stdout=out, stderr=out)


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True)
