"""Machines that are asked for under load, and emptied before they are given back."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from interlace.core.errors import Reason, ServeError
from interlace.core.node import ModelOutlook, NodeModel, NodeState
from interlace.core.plan import Demand
from interlace.fleet.controller import Controller
from interlace.fleet.machine_pool import MachineScaler
from interlace.fleet.machine_scaling import MachineScaling
from interlace.policy.catalog import resolve
from interlace.runtime.clock import SimClock
from interlace.runtime.plan_solver import InlinePlanSolver
from tests.fleet.test_controller import PROFILES, described


class Cloud:
    """A pool that brings machines at once, and a service whose nodes are empty when drained."""

    def __init__(self, machines: int) -> None:
        self.clock = SimClock()
        nodes = {f"n{i}": described(f"n{i}", gpus=1) for i in range(machines)}
        self.controller = Controller(
            self.clock,
            resolve("interlace"),
            lambda system: InlinePlanSolver(system, self.clock, 50.0),
            1,
            nodes,
        )
        self.controller.start()
        self.controller.deploy(
            {"m": {"k": NodeModel(Demand("m", 10.0, 50.0), "digest", PROFILES["m"])}}
        )
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
