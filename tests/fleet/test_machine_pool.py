"""Machines that are asked for under load, and emptied before they are given back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from interlace.core.errors import Reason, ServeError
from interlace.core.node import ModelOutlook, NodeModel, NodeState
from interlace.core.plan import Demand
from interlace.fleet.controller import Controller
from interlace.fleet.fleet_gpus import node_of
from interlace.fleet.machine_pool import MachineScaler
from interlace.fleet.machine_scaling import MachineScaling
from interlace.fleet.prices import KindPrices
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
