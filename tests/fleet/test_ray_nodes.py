"""A fleet on the machines of a Ray cluster: raylets on this one that come and are killed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil
import pytest

from tests.fleet.stand import KEY, FleetStand, Process, free_ports, get, until

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
    pytest.mark.skipif(find_spec("ray") is None, reason="no ray: pip install 'interlace[fleet]'"),
]
#: A machine that is killed is noticed within a second instead of 14; one that is busy has longer.
QUICK = {
    "health_check_period_ms": 200,
    "health_check_timeout_ms": 3_000,
    "health_check_failure_threshold": 3,
    "health_check_initial_delay_ms": 0,
}


class RayStand(FleetStand):
    """A cluster of machines with one simulated GPU each, and a controller of them."""

    def __init__(self, folder: Path, system: dict[str, int]) -> None:
        from ray.cluster_utils import Cluster

        self.folder = folder
        (folder / "key").write_text(KEY)
        model = folder / "models" / "tagger"
        shutil.copytree(ROOT / "examples" / "fleet" / "tagger", model)
        settings = re.sub("slo_ms = .*", "slo_ms = 30000", (model / "interlace.toml").read_text())
        (model / "interlace.toml").write_text(settings)
        self.port = free_ports(2)
        head = {"num_cpus": 1, "num_gpus": 0, "include_dashboard": False, "_system_config": system}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.machines: list[Any] = [self.add(), self.add()]
        self.controller = self.command()

    def add(self) -> Any:
        return self.cluster.add_node(num_cpus=1, num_gpus=1)

    def command(self, *options: str) -> Process:
        nodes = f"--device simulated --gpu h100 --gpus 1 --profiles {self.folder / 'profiles'}"
        return Process(
            self.folder, "controller", "fleet", "serve", str(self.folder / "models"),
            "--ray", self.cluster.address, "--node-options", nodes, "--http-port", str(self.port),
            "--grpc-port", str(self.port + 1), "--admin-key-file", str(self.folder / "key"),
        )  # fmt: skip

    def answer(self, value: float) -> str:
        """The digest that answers an inference, or the status and the reason of a refusal."""
        inputs = {"name": "features", "datatype": "FP32", "shape": [1, 16], "data": [value] * 16}
        url = f"http://127.0.0.1:{self.port}/v2/models/tagger/infer"
        try:
            return str(get(url, json.dumps({"inputs": [inputs]}).encode())["outputs"][0]["data"][0])
        except HTTPError as error:
            return f"{error.code}: {json.loads(error.read())['error']}"
        except OSError as error:
            return f"no answer: {error}"

    def began(self) -> dict[str, int]:
        """When each node began: another number after each start."""
        nodes = self.status()["nodes"]
        return {name: one["state"]["began"] for name, one in nodes.items() if one["state"]}

    def node_processes(self) -> dict[str, psutil.Process]:
        """The servers that keepers have started, by name."""
        found = {}
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if str(self.folder / "models") in words and "--assigned" in words:
                (name,) = [word.partition("=")[2] for word in words if word.startswith("--node=")]
                found[name] = process
        return found

    def close(self) -> None:
        if self.controller.lives:
            self.controller.end()
        self.cluster.shutdown()


@pytest.fixture
def stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[RayStand]:
    paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(":"))]
    monkeypatch.setenv("PYTHONPATH", ":".join(paths))
    made = RayStand(tmp_path, getattr(request, "param", {}))
    try:
        yield made
    except AssertionError:
        print(made.logs())
        raise
    finally:
        made.close()
        ended = [*made.node_processes().values()]
        _, left = psutil.wait_procs(ended, 30)
        assert left == [], "nodes end with their machines"


@pytest.mark.parametrize("stand", [QUICK], indirect=True, ids=["quick"])
def test_nodes_keepers_and_machines_are_killed_and_every_request_has_its_answer(
    stand: RayStand,
) -> None:
    def whole(machines: int) -> bool:
        return len(stand.serving()) == len(stand.status()["nodes"]) == machines

    until(lambda: whole(2) and stand.ask("tagger", 1.0) == stand.expected("tagger", 1.0))
    answers: list[tuple[float, str]] = []
    done = threading.Event()

    def load() -> None:
        value = 1.0
        while not done.is_set():
            value += 1.0
            answers.append((value, stand.answer(value)))

    callers = [threading.Thread(target=load) for _ in range(2)]
    for caller in callers:
        caller.start()
    try:
        before = stand.began()
        one, other = sorted(before)
        stand.node_processes()[one].kill()  # a node: its keeper starts it again
        until(lambda: stand.began().get(one) not in (before[one], None) and whole(2))

        before = stand.began()
        keeper = stand.node_processes()[other].parent()
        assert keeper is not None and "NodeKeeper" in keeper.name()
        keeper.kill()  # its node ends with it, and Ray starts it again
        until(lambda: stand.began().get(other) not in (before[other], None) and whole(2))

        stand.machines.pop(0).kill_raylet()  # a machine
        until(lambda: whole(1))
        stand.machines.append(stand.add())
        until(lambda: whole(2))
        seen = len(answers)
        until(lambda: len(answers) > seen + 20)
    finally:
        done.set()
        for caller in callers:
            caller.join()
    right = [value for value, said in answers if said == stand.expected("tagger", value)]
    refused = [said for _, said in answers if re.match(r"50[03]: .*\bnode\b", said)]
    assert len(right) + len(refused) == len(answers), sorted(
        {said for _, said in answers if ":" in said}
    )
    assert len(right) > len(answers) / 2

    before = stand.began()
    stand.controller.end(signal.SIGKILL)  # nodes go on, and are found by who comes next
    states = {name: process.pid for name, process in stand.node_processes().items()}
    stand.controller = stand.command()
    until(lambda: whole(2))
    assert stand.began() == before
    assert {name: one.pid for name, one in stand.node_processes().items()} == states
    assert stand.ask("tagger", 8.0) == stand.expected("tagger", 8.0)


def keepers() -> list[psutil.Process]:
    """The processes of actors that keep a node."""
    every = psutil.process_iter(["cmdline"])
    return [one for one in every if "ray::NodeKeeper" in " ".join(one.info["cmdline"] or [])]


def test_down_ends_nodes_actors_and_the_controller(stand: RayStand) -> None:
    until(lambda: len(stand.serving()) == 2)
    nodes, kept = [*stand.node_processes().values()], keepers()
    assert len(nodes) == 2 and len(kept) >= 2
    url = f"http://127.0.0.1:{stand.port}/v2/fleet/down"
    with urlopen(Request(url, b"{}", {"X-API-Key": KEY}), timeout=120) as reply:
        assert json.loads(reply.read()) == {"done": "all nodes have ended"}
    assert psutil.wait_procs(nodes, 30)[1] == []
    until(lambda: not stand.controller.lives and not any(map(alive, kept)))
    stand.controller = stand.command()  # and all begins anew
    until(lambda: len(stand.serving()) == 2)


def alive(process: psutil.Process) -> bool:
    """Whether it still keeps a node: Ray's workers may be kept for other work."""
    try:
        return "ray::NodeKeeper" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False
