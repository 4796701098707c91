"""Machines that are asked for under load, and emptied before they are given back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from interlace.core.errors import Reason, ServeError
from interlace.core.node import ModelOutlook, NodeModel, NodeState
from interlace.core.plan import Demand
from interlace.fleet.controller import Controller
from interlace.fleet.fleet_gpus import node_of
from interlace.fleet.kinds import KindPrices
from interlace.fleet.machine_pool import MachineScaler, MachineScaling
from interlace.policy.catalog import resolve
from interlace.runtime.clock import SimClock
from interlace.runtime.plan_solver import InlinePlanSolver
from tests.fleet.test_controller import PROFILES, described

PRICES = {"cheap": 1.0, "dear": 4.0, "dearest": 5.0}


class Cloud:
    """A pool that brings machines at once, and a service whose nodes are empty when drained."""

    def __init__(self, machines: int, kinds: Sequence[str] = ()) -> None:
        self.clock = SimClock()
        nodes = {f"n{i}": described(f"n{i}", gpus=1) for i in range(machines)}
        for node, kind in zip(nodes, kinds, strict=False):
            gpus = tuple(replace(gpu, kind=kind) for gpu in nodes[node].gpus)
            nodes[node] = replace(nodes[node], gpus=gpus)
        self.controller = Controller(
            self.clock,
            resolve("interlace"),
            lambda system: InlinePlanSolver(system, self.clock, 50.0),
            1,
            nodes,
            prices=KindPrices(PRICES if kinds else {}),
        )
        self.controller.start()
        model = NodeModel(Demand("m", 10.0, 50.0), "digest", PROFILES["m"])
        self.controller.deploy({"m": dict.fromkeys(kinds or ["k"], model)})
        self.there = set(nodes)
        self.emptied: set[str] = set()
        self.given_back: list[str] = []
        self.asked: list[int] = []
        self.arrived = 0
        scaling = MachineScaling(6, shrink_after_ms=20_000.0)
        service: Any = SimpleNamespace(
            controller=self.controller,
            drain=self.drain,
            undrain=self.undrain,
            drained=lambda node: node in self.emptied,
        )
        self.scaler = MachineScaler(service, self, scaling)

    def want(self, machines: int) -> None:
        self.asked.append(machines)
        while len(self.there) < machines:
            name = f"n{len(self.there) + len(self.given_back)}"
            self.there.add(name)
            self.controller.joined(name, described(name, gpus=1))

    def give_back(self, node: str) -> None:
        assert node in self.emptied
        assert node not in self.controller.nodes
        self.there.discard(node)
        self.given_back.append(node)

    def drain(self, node: str) -> None:
        self.emptied.add(node)
        self.controller.left(node)

    def undrain(self, node: str) -> None:
        if node not in self.there:
            raise ServeError(Reason.BAD_INPUT, f"no node '{node}'")

    def run(self, seconds: int, rows_per_s: int) -> None:
        for _ in range(seconds):
            node = next(iter(self.controller.nodes))
            outlook = ModelOutlook(5.0, 5.0, 1.0, 50.0, arrived=self.arrived)
            state = NodeState(1, 0, {"m": outlook})
            self.controller.heard(node, state)
            self.arrived += rows_per_s
            more = replace(outlook, arrived=self.arrived)
            self.controller.heard(node, replace(state, models={"m": more}))
            self.clock.run(self.clock.now_ms() + 1000.0)
            self.scaler.look(self.clock.now_ms())


def test_load_brings_machines_and_its_end_gives_them_back_empty() -> None:
    cloud = Cloud(1)
    cloud.run(10, 1)
    assert not cloud.asked
    cloud.run(120, 2500)
    most = max(cloud.asked)
    assert 1 < most <= 6 and len(cloud.controller.nodes) == most
    assert not cloud.given_back
    cloud.run(900, 1)
    assert len(cloud.given_back) == most - 1
    assert len(cloud.controller.nodes) == 1 == cloud.asked[-1]
    assert cloud.controller.plan.partitions


def test_the_dearest_idle_machine_is_given_back_first() -> None:
    cloud = Cloud(4, ["cheap", "dear", "dearest", "cheap"])
    cloud.run(300, 1)
    assert cloud.given_back[:2] == ["n2", "n1"]
    assert len(cloud.controller.nodes) == 1


def test_work_goes_to_the_dear_kind_and_back_as_rates_move() -> None:
    cloud = Cloud(2, ["cheap", "dear"])
    nothing: Any = SimpleNamespace(look=lambda now_ms: None)
    cloud.scaler = nothing  # no machine comes or goes

    def used() -> set[str]:
        return {node_of(part.gpu) for part in cloud.controller.plan.partitions}

    for rows_per_s, nodes in ((10, {"n0"}), (2_500, {"n0", "n1"}), (10, {"n0"})):
        cloud.run(90, rows_per_s)
        assert used() == nodes


def test_a_machine_without_which_a_model_is_not_served_stays() -> None:
    cloud = Cloud(3, ["cheap", "dear", "cheap"])
    only = NodeModel(Demand("k", 1.0, 50.0), "digest", replace(PROFILES["m"], model="k"))
    cloud.controller.deploy({"k": {"dear": only}})
    cloud.run(600, 1)
    assert "n1" in cloud.controller.nodes and cloud.given_back


def test_a_load_that_comes_back_keeps_the_machine_that_is_being_emptied() -> None:
    cloud = Cloud(2)
    undrained: list[str] = []
    service: Any = SimpleNamespace(
        controller=cloud.controller,
        drain=cloud.controller.left,
        undrain=undrained.append,
        drained=lambda node: False,
    )
    cloud.scaler = MachineScaler(service, cloud, MachineScaling(6, shrink_after_ms=5_000.0))
    cloud.run(60, 1)
    (left,) = {"n0", "n1"} - set(cloud.controller.nodes)
    cloud.run(120, 2500)
    assert undrained == [left] and not cloud.given_back


def play(work: float, machines: int, most: int, seconds: int = 3600) -> list[int]:
    """Machines each second, where ``work`` fills so many, and what is wanted comes at once."""
    found: list[int] = []
    scaling = MachineScaling(most)
    for second in range(seconds):
        machines = scaling.wanted(work / machines, machines, 1000.0 * second)
        found.append(machines)
    return found


@given(work=st.floats(0.0, 30.0), machines=st.integers(1, 20), most=st.integers(20, 40))
def test_work_that_stays_has_an_end_of_changes_and_fits(
    work: float, machines: int, most: int
) -> None:
    found = play(work, machines, most)
    assert len(set(found[1800:])) == 1
    assert all(1 <= count <= most for count in found)
    assert work / found[-1] <= 0.8 or found[-1] == most
    assert found[-1] == 1 or work / (found[-1] - 1) > 0.7 - 1e-6
    ups_and_downs = [b - a for a, b in zip([machines, *found], found, strict=False) if b != a]
    assert all(step > 0 for step in ups_and_downs) or all(step == -1 for step in ups_and_downs)


def test_a_moment_of_load_asks_for_nothing() -> None:
    scaling = MachineScaling(8, grow_after_ms=3_000.0)
    loads = [0.75, 2.0, 2.0, 0.75, 2.0, 0.75]
    assert [scaling.wanted(load, 4, 1000.0 * i) for i, load in enumerate(loads)] == [4] * 6


def test_growing_is_soon_and_at_once_and_shrinking_late_and_by_one() -> None:
    scaling = MachineScaling(8, grow_after_ms=3_000.0)
    assert [scaling.wanted(1.4, 2, 1000.0 * i) for i in range(4)] == [2, 2, 2, 4]
    found = [scaling.wanted(0.1, 4, 10_000.0 + 1000.0 * i) for i in range(62)]
    assert found == [4] * 60 + [3] + [4]
