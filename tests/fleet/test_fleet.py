"""A fleet on one machine: one address, nodes that die, controllers that come and go."""

from __future__ import annotations

import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
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


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[FleetStand]:
    stand = FleetStand(tmp_path, copied(tmp_path), dict.fromkeys("abc", "h100"))
    try:
        until(lambda: stand.ask("tagger", 1.0) == stand.expected("tagger", 1.0))
        until(lambda: stand.serving() == set(stand.nodes))
        yield stand
    except AssertionError:
        print(stand.logs())
        raise
    finally:
        stand.close()


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
