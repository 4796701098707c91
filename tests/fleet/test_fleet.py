"""A fleet on one machine: one address, nodes that die, controllers that come and go."""

from __future__ import annotations

import json
import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.fleet.stand import FleetStand, Process, free_ports, get, serving, until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(1500)]
EXAMPLE = Path(__file__).parents[2] / "examples" / "fleet"


#: A node serves it where it serves its model.
PAIR = """
slo_ms = 30000
max_batch = 8
[app.inputs]
features = { datatype = "FP32", dims = [16] }
[app.outputs]
tag = { datatype = "BYTES", dims = [1] }
again = { datatype = "BYTES", dims = [1] }
[app.stages.one]
model = "tagger"
inputs = { features = "features" }
outputs = { tag = "tag" }
[app.stages.two]
model = "tagger"
inputs = { features = "features" }
outputs = { tag = "again" }
"""


def copied(folder: Path) -> Path:
    """Two models whose SLO a busy machine keeps, and an app of one."""
    models = folder / "models"
    (models / "pair").mkdir(parents=True)
    (models / "pair" / "interlace.toml").write_text(PAIR)
    for name in ("tagger", "bert"):
        made = Path(shutil.copytree(EXAMPLE / name, models / name))
        text = (made / "interlace.toml").read_text()
        (made / "interlace.toml").write_text(re.sub("slo_ms = .*", "slo_ms = 30000", text))
    return models


@contextmanager
def standing(stand: FleetStand) -> Iterator[FleetStand]:
    try:
        until(lambda: stand.ask("tagger", 1.0) == stand.expected("tagger", 1.0))
        until(lambda: stand.serving() == set(stand.nodes))
        yield stand
    except AssertionError:
        print(stand.logs())
        raise
    finally:
        stand.close()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[FleetStand]:
    with standing(FleetStand(tmp_path, copied(tmp_path), dict.fromkeys("abc", "h100"))) as stand:
        yield stand


@pytest.fixture
def kinds(tmp_path: Path) -> Iterator[FleetStand]:
    """An h100 and a 2080ti, for which one of both models has no profile."""
    models = copied(tmp_path)
    lines = (models / "bert" / "1" / "profile.csv").read_text().splitlines()
    known = [line for line in lines if not line.startswith("2080ti")]
    (models / "bert" / "1" / "profile.csv").write_text("\n".join(known) + "\n")
    with standing(FleetStand(tmp_path, models, {"a": "h100", "b": "2080ti"})) as stand:
        yield stand


def test_models_go_to_the_other_kind_when_the_last_node_of_theirs_is_lost(
    kinds: FleetStand,
) -> None:
    until(lambda: "no profile on 2080ti of bert" in kinds.status()["nodes"]["b"]["remark"])
    nodes = kinds.status()["nodes"]
    assert {name: node["accelerators"] for name, node in nodes.items()} == {
        "a": {"h100": 1}, "b": {"2080ti": 1}
    }  # fmt: skip
    until(lambda: set(kinds.status()["nodes"]["b"]["assigned"]["models"]) == {"tagger"})
    assert "bert" in kinds.status()["nodes"]["a"]["assigned"]["models"]

    kinds.nodes["b"].end(signal.SIGKILL)
    until(lambda: kinds.status()["nodes"]["b"]["assigned"] is None)
    until(lambda: kinds.serving() == {"a"} and kinds.ask("tagger", 2.0) != "")
    assert kinds.ask("tagger", 3.0) == kinds.expected("tagger", 3.0)
    kinds.nodes["b"] = kinds.start("b")
    until(lambda: kinds.serving() == {"a", "b"})

    kinds.nodes["a"].end(signal.SIGKILL)
    until(lambda: kinds.status()["nodes"]["a"]["assigned"] is None)
    until(lambda: kinds.serving() == {"b"} and kinds.ask("tagger", 4.0) != "")
    assert kinds.ask("tagger", 5.0) == kinds.expected("tagger", 5.0)
    until(lambda: "no profile" in kinds.status()["reasons"].get("bert", ""))


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[FleetStand]:
    """Cores, and an h100 that is emulated."""
    models = copied(tmp_path)
    shutil.rmtree(models / "bert")
    (models / "double" / "1").mkdir(parents=True)
    (models / "double" / "1" / "model.py").write_text(
        "import torch\n"
        'INPUTS = {"x": ("FP32", (4,))}\n'
        'OUTPUTS = {"y": ("FP32", (4,))}\n\n'
        "class Double(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return 2 * x\n\n"
        "def create_model():\n"
        "    return Double()\n"
    )
    (models / "double" / "interlace.toml").write_text("slo_ms = 30000\nmax_batch = 2\n")
    with closing(FleetStand(tmp_path, models, {"a": "cpu", "b": "h100"})) as stand:
        yield stand


def test_an_emulated_accelerator_serves_nothing_beside_cores_that_compute(
    mixed: FleetStand,
) -> None:
    def doubled() -> list[float]:
        sent = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 2.0, 3.0, 4.0]}
        body = json.dumps({"inputs": [sent]}).encode()
        url = f"http://127.0.0.1:{mixed.port}/v2/models/double/infer"
        return [float(y) for y in get(url, body)["outputs"][0]["data"]]

    until(lambda: doubled() == [2.0, 4.0, 6.0, 8.0])
    until(lambda: "emulates its h100" in mixed.status()["nodes"]["b"]["problem"])
    assert not (mixed.status()["nodes"]["b"]["assigned"] or {}).get("models")
    until(lambda: mixed.ask("tagger", 1.0) == "")
    mixed.nodes["a"].end(signal.SIGKILL)
    until(lambda: mixed.status()["nodes"]["a"]["assigned"] is None)
    assert "while a computes" in mixed.status()["nodes"]["b"]["problem"]
    assert mixed.ask("tagger", 2.0) == ""


def test_nodes_die_controllers_die_and_every_request_has_its_answer(fleet: FleetStand) -> None:
    answers: list[tuple[float, str]] = []
    done = threading.Event()

    def load() -> None:
        value = 1.0
        while not done.is_set():
            value += 1.0
            model = "pair" if value % 2 else "tagger"
            while not (digest := fleet.ask(model, value)) and not done.is_set():
                time.sleep(0.05)  # refused: who had it alone is lost, and it stands nowhere yet
            answers.append((value, digest))

    callers = [threading.Thread(target=load) for _ in range(4)]
    for caller in callers:
        caller.start()
    try:
        until(lambda: len(answers) > 50)
        fleet.nodes["a"].end(signal.SIGKILL)
        until(lambda: fleet.status()["nodes"]["a"]["assigned"] is None)
        until(lambda: fleet.serving() == {"b", "c"})
        before = len(answers)
        until(lambda: len(answers) > before + 50)
        fleet.nodes["b"].send(signal.SIGSTOP)  # it hangs: no connection breaks
        until(lambda: fleet.serving() == {"c"})
        before = len(answers)
        until(lambda: len(answers) > before + 20)
        fleet.nodes["b"].send(signal.SIGCONT)
        fleet.nodes["a"] = fleet.start("a")
        until(lambda: fleet.serving() == {"a", "b", "c"})
    finally:
        done.set()
        for caller in callers:
            caller.join()
    assert [value for value, digest in answers if digest != fleet.expected("tagger", value)] == []

    fleet.controller.end(signal.SIGKILL)  # nodes go on with what they were told
    states = {n: get(f"http://127.0.0.1:{p}/v2/node/state") for n, p in fleet.ports.items()}
    assert all(state["revision"][0] == 1 for state in states.values())
    having = [name for name, state in states.items() if "tagger" in state["models"]]
    port = fleet.ports[having[0]]
    assert fleet.ask("tagger", 7.0, port) == fleet.expected("tagger", 7.0)
    fleet.controller = fleet.command()
    until(lambda: fleet.serving() == {"a", "b", "c"})
    assert fleet.status()["term"] == 2
    assert fleet.ask("tagger", 8.0) == fleet.expected("tagger", 8.0)


def test_one_command_is_a_fleet_of_this_machine(tmp_path: Path) -> None:
    port = free_ports(2)
    options = f"--device simulated --gpu h100 --profiles {tmp_path / 'profiles'}"
    command = Process(
        tmp_path, "fleet", "fleet", "serve", str(EXAMPLE), "--local", "2", "--node-options",
        options, "--http-port", str(port), "--grpc-port", str(port + 1),
    )  # fmt: skip

    def keeps(name: str) -> psutil.Process | None:
        for one in psutil.Process(command.pid).children():
            with suppress(psutil.NoSuchProcess):
                if f"--node={name}" in one.cmdline():
                    return one
        return None

    try:
        until(lambda: serving(port) == {"node1", "node2"})
        lost = keeps("node1")
        assert lost is not None
        lost.kill()
        until(lambda: keeps("node1") not in (None, lost) and serving(port) == {"node1", "node2"})
        nodes = [keeps("node1"), keeps("node2")]
    except AssertionError:
        print(command.log.read_text())
        raise
    finally:
        status = command.end(signal.SIGTERM)
    assert status == 0
    _, alive = psutil.wait_procs([one for one in nodes if one is not None], 60)
    assert alive == []
