"""A controller that runs: it asks nodes how they are, plans, and tells them what to serve."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
from msgspec import structs

from interlace.core.errors import Reason, ServeError
from interlace.core.node import (
    UNASSIGNED,
    Assignment,
    FilesOrder,
    NodeDescription,
    NodeState,
    Revision,
)
from interlace.core.plan import Plan
from interlace.core.tables import did_you_mean
from interlace.fleet.controller import Controller, what_if
from interlace.fleet.lease import Lease, next_term
from interlace.fleet.membership import KeptNodeChanges, Presence
from interlace.fleet.model_files import FleetFiles
from interlace.fleet.node_client import (
    NodeModels,
    NodeOrders,
    clock_remark,
    read_description,
    unfit,
)
from interlace.fleet.status import FleetStatus, NodeStatus, PlannedFleet
from interlace.router.directory import NodeDirectory
from interlace.router.http.reads import NodeReader

_LOG: Final = logging.getLogger(__name__)
#: How often nodes are looked at, and how long the first ones are waited for.
_LOOK_S: Final = 0.05
_GATHER_S: Final = 3.0
_LEASE_S: Final = 0.4
_MODELS_S: Final = 2.0
#: What a node with all accelerators that it may have says that it is.
_DESCRIPTION_BYTES: Final = 1 << 20
#: Makes a controller of a term, for the nodes that are there, and what they were told before.
MakeController = Callable[
    [int, Mapping[str, NodeDescription], Mapping[str, Assignment]], Controller
]


@dataclass(eq=False)
class FleetService:
    """Commands the nodes of a directory while it holds the lease.

    Level-triggered: a node whose state has an older revision than its assignment gets the order
    again, whether it missed the order, refused it, or restarted.
    """

    _directory: NodeDirectory
    _reader: NodeReader
    _orders: NodeOrders
    _files: FleetFiles
    _source: Callable[[str], str]  #: where a node reaches this controller, as HOST:PORT
    _make: MakeController
    _lease: Lease
    _changes: KeptNodeChanges

    def __post_init__(self) -> None:
        self._models = NodeModels(self._reader)
        self._presence = Presence()
        self._states: dict[str, NodeState] = {}
        self._described: dict[str, NodeDescription] = {}
        self._computing: set[str] = set()  # nodes that do not emulate, there or lost
        self._asking: dict[str, asyncio.Task[None]] = {}  #: nodes that are to say what they are
        self._telling: dict[str, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.on_term: Callable[[], None] = lambda: None  #: this controller begins to command
        self.on_broken: Callable[[], None] = lambda: None  #: a task failed: it commands no more
        self.controller: Controller | None = None
        self.term = 0  #: 0 while another commands
        self.remarks: dict[str, str] = {}  #: by node: what is odd and keeps it from nothing

    @property
    def problems(self) -> Mapping[str, str]:
        """By node: why it does not do what it should."""
        return self._orders.problems

    def heard(self, node: str, state: NodeState) -> None:
        """A node has said how it is."""
        self._states[node] = state
        if self.controller is not None:
            self.controller.heard(node, state)
            self._tell(node)

    def start(self) -> None:
        """Begin; the tasks run until ``close``."""
        self._tasks = [
            asyncio.ensure_future(work) for work in (self._command(), self._look(), self._read())
        ]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def close(self) -> None:
        """Command no more; nodes go on with what they were told."""
        self._stop()
        self._lease.release()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Give up the lease, so that another commands: what is broken here is not elsewhere."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        _LOG.error("this controller is broken and commands no more", exc_info=error)
        self.close()
        self.controller, self.term = None, 0
        self.on_broken()

    def known(self, node: str) -> None:
        """Nothing, if there is such a node.

        Raises:
            ServeError: there is none.
        """
        names = sorted(one.name for one in self._directory.nodes)
        if node not in names:
            raise ServeError(
                Reason.BAD_INPUT,
                f"no node '{node}'{did_you_mean(node, names)}; there are {', '.join(names)}",
            )

    def _stop(self) -> None:
        for task in (*self._tasks, *self._asking.values(), *self._telling.values()):
            task.cancel()

    def drain(self, node: str) -> None:
        """Have a node's models stand elsewhere, then let it take nothing.

        Raises:
            ServeError: there is no such node, or this controller does not command, or no other
                node could serve.
        """
        self.known(node)
        controller = self._commanding()
        if not set(controller.nodes) - {node}:
            raise ServeError(
                Reason.BAD_INPUT,
                f"no other node than {node} serves: add one first, or end the fleet (down)",
            )
        now = self._changes.now
        self._changes.keep(structs.replace(now, drained=now.drained | {node}))
        if node in controller.nodes:
            controller.left(node)

    def undrain(self, node: str) -> None:
        """Plan for a drained node again.

        Raises:
            ServeError: there is no such node.
        """
        self.known(node)
        now = self._changes.now
        self._changes.keep(structs.replace(now, drained=now.drained - {node}))

    def drained(self, node: str) -> bool:
        """Whether a node that is to be emptied takes nothing any more."""
        state = self._states.get(node)
        return node in self._changes.now.drained and (state is None or not state.accepting)

    async def plan(
        self, rates_rows_per_s: Mapping[str, float], without: Collection[str]
    ) -> PlannedFleet:
        """What would be planned now, for other rates of some models, without some nodes.

        Raises:
            ServeError: there is no such model or node, none is left, or this controller does not
                command.
        """
        for node in without:
            self.known(node)
        return await what_if(self._commanding(), rates_rows_per_s, without)

    async def down(self) -> list[str]:
        """Command no more, and have every node serve nothing once its queue is served.

        Returns those that did not take the order.

        Raises:
            ServeError: this controller does not command.
        """
        nothing = self._commanding().nothing()
        self._stop()
        self.controller = None
        nodes = list(self._described)
        await asyncio.gather(*(self._give(node, nothing) for node in nodes))
        return [node for node in nodes if node in self.problems]

    def _commanding(self) -> Controller:
        if self.controller is None:
            raise ServeError(
                Reason.NOT_READY, "this controller does not command (yet): ask the one that does"
            )
        return self.controller

    def status(self) -> FleetStatus:
        """How the fleet is, for people and programs."""
        controller = self.controller
        nodes = {
            node.name: NodeStatus(
                zone=described.zone if (described := self._described.get(node.name)) else "",
                accelerators=dict(Counter(g.kind for g in described.gpus)) if described else {},
                state=self._states.get(node.name),
                assigned=None if controller is None else controller.assignment(node.name),
                problem=self.problems.get(node.name, ""),
                remark="; ".join(filter(None, self._remarks(node.name, described))),
                drained=node.name in self._changes.now.drained,
            )
            for node in self._directory.nodes
        }
        plan = Plan() if controller is None else controller.plan
        return FleetStatus(
            self.term,
            self._files.digest,
            nodes,
            dict(plan.unserved_rows_per_s),
            {} if controller is None else dict(controller.reasons),
            "" if controller is None else controller.failure,
            controller is not None and controller.planning,
            None if controller is None else controller.cost,
        )

    def _remarks(self, node: str, described: NodeDescription | None) -> Iterator[str]:
        """What is odd: models that were not measured on its accelerators, no price, its clock."""
        kind = "" if described is None else described.gpus[0].kind
        yield self._models.remark(kind)
        if self.controller is not None:
            yield self.controller.prices.remark(kind)
        yield self.remarks.get(node, "")

    async def _command(self) -> None:
        """Take the lease, and give up what was planned when it is lost."""
        await self._gather()
        loop = asyncio.get_running_loop()
        plans_s = 0.0
        while True:
            terms = [state.revision[0] for state in self._states.values()]
            term = self._renewed(next_term(terms, begins=not self.term))
            if term and term != self.term:
                _LOG.info("this controller commands: term %d", term)
                self.on_term()
                self.controller, plans_s = None, loop.time() + _GATHER_S
            elif not term and self.term:
                _LOG.warning("another controller commands; this one waits")
                self.controller = None
            self.term = term
            able = self._able()
            # One plan is for all, but nobody waits long for a node that fetches.
            awaited = len(able) < len(self._described) and loop.time() < plans_s
            if term and self.controller is None and able and not awaited:
                await self._begin(term, able)
            await asyncio.sleep(_LEASE_S if self.controller is not None else _LOOK_S)

    async def _begin(self, term: int, nodes: Mapping[str, NodeDescription]) -> None:
        """Plan from now on, at first for these nodes, with what they serve."""
        found = await asyncio.gather(*map(self._standing, nodes))
        standing = {one: told for one, told in zip(nodes, found, strict=True) if told is not None}
        self.controller = self._make(term, nodes, standing)
        self.controller.on_assignments = self._tell_all
        self.controller.start()
        self._models.forget()

    async def _standing(self, node: str) -> Assignment | None:
        """What a node was told by an earlier controller, if it says so."""
        if Revision(*self._states[node].revision) == UNASSIGNED:
            return None
        with suppress(ServeError, msgspec.MsgspecError):
            return await self._orders.standing(node)
        return None

    def _able(self) -> dict[str, NodeDescription]:
        """Nodes that have at hand what is wanted."""
        return {
            name: described
            for name, described in self._described.items()
            if (state := self._states.get(name))
            and state.files == self._files.digest
            and name not in self._changes.now.drained
        }

    def _renewed(self, at_least: int) -> int:
        """The term that is held; 0 while another commands, or where nobody can tell."""
        try:
            return self._lease.renew(at_least) or 0
        except OSError as error:
            _LOG.error("the lease cannot be renewed: %s", error)
            return 0

    async def _gather(self) -> None:
        """Wait until every node was heard of, or some for a while, so that one plan is for all."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + _GATHER_S
        while True:
            wanted = {node.name for node in self._directory.nodes}
            if self._described and (wanted <= self._described.keys() or loop.time() > ends_s):
                return
            await asyncio.sleep(_LOOK_S)

    async def _look(self) -> None:
        """Notice nodes that join and leave."""
        while True:
            heard_ms, refusing = self._directory.heard_ms(), self._directory.refusing()
            lost = self._presence.lost(heard_ms, refusing, self._directory.now_ms())
            for node in sorted(self._described.keys() - (heard_ms.keys() - lost)):
                why = "is lost" if node in heard_ms else "was removed"
                _LOG.warning("node %s %s: its models are placed elsewhere", node, why)
                self._give_up(node)
            for node in sorted(filter(self._is_new, self._directory.heard_lately() - lost)):
                _once(self._asking, node, self._describe)
            wanted = self._files.models if self._files.digest else None
            reasons = {} if self.controller is None else self.controller.reasons
            self._directory.plan_is_for(wanted, reasons)
            if self.controller is not None:
                able = self._able()
                for node in sorted(able.keys() - set(self.controller.nodes)):
                    self.controller.joined(node, able[node])
                drained = self._changes.now.drained & self._described.keys()
                await asyncio.gather(*map(self._empty, sorted(drained)))
            await asyncio.sleep(_LOOK_S)

    def _is_new(self, node: str) -> bool:
        state, known = self._states.get(node), self._described.get(node)
        return known is None or (state is not None and state.began != known.began)

    def _give_up(self, node: str) -> None:
        """Plan without it from now on."""
        del self._described[node]
        self._states.pop(node, None)
        if self.controller is not None and node in self.controller.nodes:
            self.controller.left(node)

    async def _empty(self, node: str) -> None:
        """Let a drained node take nothing, if all others do what they are to do."""
        controller, state = self.controller, self._states.get(node)
        if controller is None or controller.planning or state is None or not state.accepting:
            return
        if all(map(self.follows, controller.nodes)):
            await self._orders.drain(node, controller.next_revision())

    def follows(self, node: str) -> bool:
        """Whether a node has loaded its part of the plan."""
        state = self._states.get(node)
        assigned = None if self.controller is None else self.controller.assignment(node)
        if state is None or assigned is None or not state.settled:
            return False
        return Revision(*state.revision) >= assigned.revision

    async def _describe(self, node: str) -> None:
        asked_s = time.time()
        try:
            answer = await self._reader.ask(node, "GET", "/v2/node", most_bytes=_DESCRIPTION_BYTES)
            found, clock_s = read_description(answer.body)
        except (ServeError, msgspec.MsgspecError) as error:
            self._orders.complain(node, f"does not say what it is: {error}")
            return
        before = self._described.get(node)
        if before is not None and replace(before, began=found.began) != found:
            self._give_up(node)  # what began anew has other accelerators
        others = {name: one for name, one in self._described.items() if name != node}
        self._computing &= {one.name for one in self._directory.nodes}
        if wrong := unfit(found, others, self._computing):
            state = self._states.get(node)
            if found.emulated and self._computing and self.controller and state and state.models:
                await self._give(node, self.controller.nothing())  # it was fit once
            self._orders.complain(node, wrong)
        else:
            if not found.emulated:
                self._computing.add(node)
                for other in [name for name, one in others.items() if one.emulated]:
                    self._give_up(other)  # and hear why when it is described again
            self.remarks[node] = clock_remark(clock_s, asked_s, time.time())
            self._orders.problems.pop(node, None)
            self._described[node] = found

    async def _read(self) -> None:
        """Bring what is served in line with what is wanted and nodes have at hand."""
        while True:
            await self._files.look()
            if self.term:
                orders = (self._order(node) for node in self._described)
                await asyncio.gather(*orders)
            if self.controller is not None:
                with suppress(ServeError):
                    await self._models.bring_up(self.controller, self._able(), self._files.digest)
            await asyncio.sleep(_MODELS_S if self.controller is not None else _LEASE_S)

    async def _order(self, node: str) -> None:
        """Have a node bring what is wanted, if it has not yet."""
        state = self._states.get(node)
        if state is None or state.files == self._files.digest:
            return
        order = FilesOrder(self.term, self._files.digest, self._source(node))
        await self._orders.bring(node, order)

    def _tell_all(self) -> None:
        for node in list(self._described):
            self._tell(node)

    def _tell(self, node: str) -> None:
        """Give a node its assignment if it follows an older one."""
        controller, state = self.controller, self._states.get(node)
        if controller is None or state is None:
            return
        assignment = controller.assignment(node)
        if assignment is not None and Revision(*state.revision) < assignment.revision:
            _once(self._telling, node, lambda node: self._give(node, assignment))

    async def _give(self, node: str, assignment: Assignment) -> None:
        if not await self._orders.serve(node, assignment):
            await asyncio.sleep(_LEASE_S)  # it will be told again: not at once


def _once(
    running: dict[str, asyncio.Task[None]],
    node: str,
    work: Callable[[str], Coroutine[Any, Any, None]],
) -> None:
    """Begin that work for a node, unless it is under way; if it fails, others go on."""

    def ended(task: asyncio.Task[None]) -> None:
        running.pop(node, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("node %s: what was asked of it failed", node, exc_info=error)

    if node not in running:
        task = running[node] = asyncio.ensure_future(work(node))
        task.add_done_callback(ended)
