"""The machines of a Ray cluster as nodes: on each an actor that keeps one, never asked for more."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from interlace.core.node import Node
from interlace.core.user_errors import InputError
from interlace.fleet.node_keeper import NodeKeeper, NodeLaunch

_LOG: Final = logging.getLogger(__name__)
_NAMESPACE: Final = "interlace"
_ZONE: Final = "ray.io/availability-zone"
_LOOK_S: Final = 0.5
_PATIENCE_S: Final = 0.5
_END_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine with accelerators, by its id in Ray; a ``zone`` of its own if it tells none."""

    id: str
    host: str
    zone: str
    gpus: float

    @property
    def name(self) -> str:
        """The name of its node."""
        return _name(self.id)


class RayNodes:
    """A node on each machine of a cluster that has GPUs, as long as the machine exists.

    An actor is pinned to its machine and holds all of its GPUs, so each machine has one, however
    the cluster grows. Actors outlive this process, unless it ends them: the next process finds
    them by name. No request goes through Ray.
    """

    def __init__(self, address: str, launch: NodeLaunch, most_machines: int | None = None) -> None:
        """``address`` is that of the cluster, or "auto". One in a process.

        Ray's autoscaler may be asked for ``most_machines``; without, it is left alone.

        Raises:
            ModuleNotFoundError: Ray is not installed.
            InputError: there is no such cluster.
        """
        import ray

        try:
            ray.init(
                address=address,
                namespace=_NAMESPACE,
                log_to_driver=False,
                logging_level=logging.WARNING,
            )
        except ConnectionError as error:
            why = str(error).partition("\n")[0]
            raise InputError(
                f"--ray {address}: {why}: start a cluster with: ray start; one that asks for a "
                "token is reached with RAY_AUTH_MODE=token"
            ) from error
        self.most_machines = most_machines
        self._ray: Any = ray
        self._launch = launch
        self._address = address
        self._keepers: dict[Machine, Any] = {}
        self._asked: dict[Machine, Any] = {}
        self._nodes: dict[Machine, Node] = {}
        self._problems: dict[Machine, str] = {}
        self._looking = threading.Lock()
        self._ended = False  #: nothing is kept any more
        self._wanted = 0  #: machines that the autoscaler is to bring; 0 to leave it alone
        self._told: tuple[int, float] | None = None
        self._given_back: set[str] = set()  #: nodes whose machines may be taken away

    def __str__(self) -> str:
        return f"the machines of Ray at {self._address}"

    async def watch(self) -> AsyncIterator[tuple[Node, ...]]:
        """Never ends. Ray is asked in a thread: it may block."""
        loop = asyncio.get_running_loop()
        nodes: tuple[Node, ...] | None
        known: tuple[Node, ...] | None = None
        thread = ThreadPoolExecutor(1, "ray")
        try:
            while True:
                try:
                    nodes = await loop.run_in_executor(thread, self._look)
                except (self._ray.exceptions.RayError, RuntimeError, OSError) as error:
                    _LOG.warning("Ray does not say who is there; nodes stay: %s", error)
                    nodes = known
                if nodes is not None and nodes != known:
                    known = nodes
                    yield nodes
                await asyncio.sleep(_LOOK_S)
        finally:
            thread.shutdown(wait=False, cancel_futures=True)

    def _look(self) -> tuple[Node, ...]:
        with self._looking:
            return () if self._ended else self._bring_up()

    def _bring_up(self) -> tuple[Node, ...]:
        """Bring keepers in line with machines; the nodes that they keep."""
        machines = machines_of(self._ray.nodes())
        for gone in self._keepers.keys() - machines:
            del self._keepers[gone]
            self._asked.pop(gone, None)
            self._nodes.pop(gone, None)
        self._scale(machines)
        machines = [one for one in machines if one.name not in self._given_back]
        for machine in machines:
            if machine not in self._keepers:
                self._keepers[machine] = self._keep(machine)
            if machine not in self._asked:
                self._asked[machine] = self._keepers[machine].node.remote()
        asked = list(self._asked.values())
        done = (
            self._ray.wait(asked, num_returns=len(asked), timeout=_PATIENCE_S)[0] if asked else ()
        )
        for machine in [one for one, ref in self._asked.items() if ref in done]:
            self._take(machine, self._asked.pop(machine))
        return tuple(self._nodes[one] for one in machines if one in self._nodes)

    def want(self, machines: int) -> None:
        """Have Ray's autoscaler bring as many machines as there are to be, all in all.

        Where more are wanted than before, those that were given back and are still there count.
        """
        if machines > self._wanted:
            self._given_back.clear()
        self._wanted = machines

    def end(self) -> None:
        """End every node, once it has answered what it accepted, and who keeps it. It blocks."""
        with self._looking:
            self._ended = True
            keepers = list(self._keepers.values())
            self._keepers.clear()
            self._nodes.clear()
        ends = [keeper.end.remote() for keeper in keepers]
        if ends:
            self._ray.wait(ends, num_returns=len(ends), timeout=_END_S)
        for keeper in keepers:
            self._ray.kill(keeper, no_restart=True)

    def give_back(self, node: str) -> None:
        """Keep a node no more, so that its machine is idle and the autoscaler may take it away."""
        self._given_back.add(node)

    def _scale(self, machines: list[Machine]) -> None:
        """Say what is wanted, and end what is kept on machines that are given back."""
        from ray.autoscaler.sdk import request_resources

        for machine in [one for one in machines if one.name in self._given_back]:
            self._nodes.pop(machine, None)
            self._asked.pop(machine, None)
            if (keeper := self._keepers.pop(machine, None)) is not None:
                self._ray.kill(keeper, no_restart=True)
        gpus = max((one.gpus for one in machines), default=1.0)
        wanted = self._wanted, gpus
        if self._wanted and wanted != self._told:
            request_resources(bundles=[{"GPU": gpus}] * self._wanted)
            self._told = wanted

    def _keep(self, machine: Machine) -> Any:
        """The actor on that machine: the one that is there, else a new one."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options = {
            "name": machine.name,
            "lifetime": "detached",
            "get_if_exists": True,
            "max_restarts": -1,
            "num_cpus": 0,
            "num_gpus": machine.gpus,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(machine.id, soft=False),
        }
        actor = self._ray.remote(NodeKeeper).options(**options)
        return actor.remote(self._launch, machine.name, machine.host, machine.zone)

    def _take(self, machine: Machine, answer: Any) -> None:
        """What a keeper says of its node; as long as it cannot, the node stays where it was."""
        try:
            node = self._ray.get(answer)
        except self._ray.exceptions.ActorDiedError as error:
            self._complain(machine, f"its keeper has ended: {error}")
            del self._keepers[machine]
        except self._ray.exceptions.RayError as error:
            self._complain(machine, f"its keeper does not answer: {error}")
        else:
            self._problems.pop(machine, None)
            if node is not None:
                self._nodes[machine] = node

    def _complain(self, machine: Machine, why: str) -> None:
        why = why.partition("\n")[0]
        if self._problems.get(machine) != why:
            self._problems[machine] = why
            _LOG.warning("machine %s (%s): %s", machine.name, machine.host, why)


def machines_of(nodes: list[dict[str, Any]]) -> list[Machine]:
    """The machines with GPUs that live, of what Ray tells of its nodes; by id."""
    found = [
        Machine(
            one["NodeID"],
            one["NodeManagerAddress"],
            one.get("Labels", {}).get(_ZONE) or _name(one["NodeID"]),
            one["Resources"]["GPU"],
        )
        for one in nodes
        if one["Alive"] and one["Resources"].get("GPU", 0) >= 1
    ]
    return sorted(found, key=lambda machine: machine.id)


def _name(machine: str) -> str:
    return f"{_NAMESPACE}-{machine[-12:]}"
