"""Starts one machine's node as a process of its own, and again when it ends."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from interlace.core.node import Node
from interlace.core.tables import counted
from interlace.server.listening import listening_sockets
from interlace.shm import children

_LOG: Final = logging.getLogger(__name__)
_PORTS: Final = 3  # of HTTP, gRPC and metrics
_NODE: Final = "interlace.shm.children:become"


@dataclass(frozen=True, slots=True)
class NodeLaunch:
    """How nodes are started. ``models`` is a path that every machine has.

    ``options`` are further ones of ``interlace serve``; ports are the first three in a row from
    ``first_port`` on that are free.
    """

    models: str
    options: tuple[str, ...] = ()
    admin_key: str = ""
    api_key: str = ""
    node_key: str = ""
    first_port: int = 8010


class Backoff:
    """How long to wait before a process that ended is started again: longer each time, until it
    has run for ``calm_s``.
    """

    def __init__(self, first_s: float = 0.5, most_s: float = 30.0, calm_s: float = 60.0) -> None:
        self._first_s = self._next_s = first_s
        self._most_s = most_s
        self._calm_s = calm_s

    def after(self, ran_s: float) -> float:
        """Seconds to wait after it ran for ``ran_s``."""
        wait_s = self._first_s if ran_s >= self._calm_s else self._next_s
        self._next_s = min(2 * wait_s, self._most_s)
        return wait_s


class NodeKeeper:
    """One node, an ordinary ``interlace serve --assigned``, from now until ``end``.

    It ends with the process that keeps it, too. Thread-safe.
    """

    def __init__(
        self, launch: NodeLaunch, name: str, host: str, zone: str, backoff: Backoff | None = None
    ) -> None:
        """``host`` is the address at which others reach this machine."""
        self._launch = launch
        self._name = name
        self._host = host
        self._zone = zone
        self._backoff = Backoff() if backoff is None else backoff
        self._node: Node | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._keep, name="node-keeper", daemon=True)
        self._thread.start()

    def node(self) -> Node | None:
        """Where the node listens, or will; ``None`` between its end and its next start."""
        return self._node

    def pid(self) -> int:
        """The node's process; 0 if there is none."""
        process = self._process
        return 0 if process is None else process.pid

    def end(self) -> None:
        """Let the node answer what it accepted; returns when it has ended."""
        with self._lock:
            self._ending.set()
            if self._process is not None:
                self._process.terminate()
        self._thread.join()

    def _keep(self) -> None:
        with ExitStack() as keys:
            options = [
                f"--{kind}-key-file={keys.enter_context(tempfile.NamedTemporaryFile()).name}"
                for kind, key in self._keys()
            ]
            for option, (_, key) in zip(options, self._keys(), strict=True):
                Path(option.partition("=")[2]).write_text(key, encoding="utf-8")
            while not self._ending.is_set():
                began_s = time.monotonic()
                status = self._run(options)
                if self._ending.is_set():
                    return
                wait_s = self._backoff.after(time.monotonic() - began_s)
                _LOG.warning(
                    "node %s ended with status %d; again in %.1f s", self._name, status, wait_s
                )
                self._ending.wait(wait_s)

    def _keys(self) -> list[tuple[str, str]]:
        launch = self._launch
        keys = {"admin": launch.admin_key, "api": launch.api_key, "node": launch.node_key}
        return [(kind, key) for kind, key in keys.items() if key]

    def _run(self, options: Sequence[str]) -> int:
        """Run the node once; its exit status."""
        with claimed_ports(self._launch.first_port, self._host) as port:
            with self._lock:
                if self._ending.is_set():
                    return 0
                self._process = children.start(_NODE, *self._argv(port), *options)
            self._node = Node(self._name, self._host, port, port + 1)
            try:
                return self._process.wait()
            finally:
                self._node = self._process = None

    def _argv(self, port: int) -> list[str]:
        return [
            "-m", "interlace", "serve", self._launch.models, "--assigned",
            f"--node={self._name}", f"--zone={self._zone}", f"--host={self._host}",
            f"--http-port={port}", f"--grpc-port={port + 1}", f"--metrics-port={port + 2}",
            *self._launch.options,
        ]  # fmt: skip


@contextmanager
def claimed_ports(first: int, host: str) -> Iterator[int]:
    """The first of three free ports in a row, looked for from ``first`` on.

    No other keeper on this machine is given one of them meanwhile: a name without a file, which
    the system frees with its owner, stands for the three.

    Raises:
        OSError: there are none.
    """
    for port in range(first, 65536 - _PORTS, _PORTS):
        with socket.socket(socket.AF_UNIX) as claim:
            try:
                claim.bind(f"\0interlace-ports-{port}")
            except OSError:
                continue
            if all(_is_free(host, one) for one in range(port, port + _PORTS)):
                yield port
                return
    raise OSError(f"no {_PORTS} free ports in a row on {host} from {first} on")


def _is_free(host: str, port: int) -> bool:
    try:
        for sock in listening_sockets("a node", host, port, 1):
            sock.close()
    except OSError:
        return False
    return True


_HOST: Final = "127.0.0.1"
_LOOK_S: Final = 0.1


class LocalNodes:
    """So many nodes, node1 and so on, each a zone by itself; one that ends is started again."""

    def __init__(self, count: int, launch: NodeLaunch) -> None:
        names = [f"node{number}" for number in range(1, count + 1)]
        self._keepers = [NodeKeeper(launch, name, _HOST, name) for name in names]

    def __str__(self) -> str:
        return f"{counted(len(self._keepers), 'node')} of this machine"

    async def watch(self) -> AsyncIterator[tuple[Node, ...]]:
        """Never ends. A node that has ended is none until it is started again."""
        known: tuple[Node, ...] | None = None
        while True:
            nodes = tuple(node for keeper in self._keepers if (node := keeper.node()) is not None)
            if nodes != known:
                known = nodes
                yield nodes
            await asyncio.sleep(_LOOK_S)
