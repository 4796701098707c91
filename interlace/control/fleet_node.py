"""A node of a fleet: the assignments that it carries out, and the states that it publishes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import Final, Protocol

from interlace.apps.graph import ServedApp
from interlace.control.model_files import WantedModels
from interlace.core.errors import Reason, RepositoryError, ServeError, bad_input
from interlace.core.hardware import Fleet
from interlace.core.messages import PlanChanged
from interlace.core.node import UNASSIGNED, Assignment, ModelOutlook, NodeState, Revision
from interlace.core.plan import possible
from interlace.core.tables import did_you_mean
from interlace.engine.engine import Engine
from interlace.policy.base import Planner
from interlace.runtime.clock import Clock
from interlace.runtime.plan_solver import AssignedPlanSolver
from interlace.runtime.runtime import Runtime
from interlace.server.model_table import ModelTable, ServedModel

_LOG: Final = logging.getLogger(__name__)


class NodeLifecycle(Protocol):
    """The models of a node, as ``ModelLifecycle`` has them; in simulations they are profiles."""

    draining: bool

    async def names(self) -> list[str]: ...
    async def digests(self, name: str) -> list[str]: ...
    async def load(self, name: str) -> None: ...
    async def unload(self, name: str) -> None: ...
    def serving(self) -> set[str]: ...


@dataclass(slots=True)
class Assignments:
    """Takes assignments; without a solver the node plans for itself and takes none.

    An order that is not newer than the last one is refused, whoever sends it, so that of two
    controllers the one with the later term commands. Assignments are carried out one after the
    other, and of those that wait only the newest.
    """

    _runtime: Runtime
    _fleet: Fleet
    _lifecycle: NodeLifecycle
    _solver: AssignedPlanSolver | None
    wanted: WantedModels  #: models that it could not bring are left out, the others served
    newest: Assignment | None = None  #: that was taken
    node: str = "this node"  #: its name, for those who read errors
    revision: Revision = UNASSIGNED  #: of the last order that was taken
    #: Models of it that could not be brought up, and why.
    failures: dict[str, str] = field(default_factory=dict)
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def under_way(self) -> bool:
        """Something that was taken is not with the engine yet."""
        return bool(self._tasks) or (self._solver is not None and self._solver.answering)

    async def assign(self, assignment: Assignment, follow: Planner) -> Revision:
        """Check an assignment and begin to carry it out; ``follow`` is its planner.

        Raises:
            ServeError: SUPERSEDED by a newer order, or it cannot be carried out here: why.
        """
        if self._solver is None:
            raise ServeError(
                Reason.UNSUPPORTED,
                f"{self.node} plans for itself: serve with --assigned to tell it what to serve",
            )
        if assignment == self.newest and assignment.revision == self.revision:
            return self.revision  # sent again: its answer was lost
        self._fence(assignment.revision)
        check_plan(assignment, self._fleet, self.node)
        await self._check_models(assignment)
        self._fence(assignment.revision)  # another may have come while storage was read
        self.revision, self.newest, self.failures = assignment.revision, assignment, {}
        self._lifecycle.draining = False
        _LOG.info("assignment %s: %s", _text(self.revision), ", ".join(assignment.models) or "none")
        task = asyncio.ensure_future(self._carry_out(assignment, follow, self._solver))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return self.revision

    def drain(self, revision: Revision) -> Revision:
        """Be not ready until the next assignment; requests that still arrive are served.

        Raises:
            ServeError: SUPERSEDED by a newer order.
        """
        self._fence(revision)
        self.revision = revision
        self._lifecycle.draining = True
        _LOG.info("drained by order %s", _text(revision))
        return revision

    def close(self) -> None:
        """Stop what is being carried out."""
        for task in self._tasks:
            task.cancel()

    def _fence(self, revision: Revision) -> None:
        if revision <= self.revision:
            raise ServeError(
                Reason.SUPERSEDED,
                f"{self.node}: an order of {_text(revision)} comes too late, the last was of "
                f"{_text(self.revision)}: who lost the lease gives no orders, who holds it begins "
                "with a later term",
            )

    async def _check_models(self, assignment: Assignment) -> None:
        known = {} if self.newest is None else self.newest.models  # checked when that was taken
        unknown = {n: one for n, one in assignment.models.items() if known.get(n) != one}
        there = set(await self._read(self._lifecycle.names())) if unknown else set()
        for name, digest in unknown.items():
            if name in self.wanted.failures:
                continue  # the node's state says why
            if name not in there:
                raise ServeError(
                    Reason.UNKNOWN_MODEL,
                    f"{self.node}: the assignment has model '{name}'{did_you_mean(name, there)}, "
                    f"which is not in its repository; it has {', '.join(sorted(there)) or 'none'}",
                )
            found = await self._read(self._lifecycle.digests(name)) if digest else ()
            if digest and digest not in found:
                raise ServeError(
                    Reason.BAD_INPUT,
                    f"{self.node}: the files of model '{name}' are others than the assignment's: "
                    f"digest {', '.join(one[:12] for one in found)}, expected {digest[:12]}: bring "
                    "the same files to every node",
                )

    async def _read(self, storage: Awaitable[list[str]]) -> list[str]:
        try:
            return await storage
        except RepositoryError as error:
            raise ServeError(Reason.BACKEND, f"{self.node}: {error}") from error

    async def _carry_out(
        self, assignment: Assignment, follow: Planner, solver: AssignedPlanSolver
    ) -> None:
        async with self._changing:
            if assignment is not self.newest:
                return  # a newer one waits
            serving = self._lifecycle.serving()
            # Unloading begins before the new plan is asked for, so that queued requests are served.
            gone = sorted(serving - assignment.models.keys())
            leaving = [asyncio.ensure_future(self._lifecycle.unload(name)) for name in gone]
            await asyncio.sleep(0)
            solver.follow(follow)
            self._runtime.deliver(PlanChanged())
            new = sorted(assignment.models.keys() - serving)
            ends = await asyncio.gather(*map(self._lifecycle.load, new), return_exceptions=True)
            failed = {n: str(end) for n, end in zip(new, ends, strict=True) if end is not None}
            for name, reason in failed.items():
                _LOG.error("assignment %s: %s: %s", _text(assignment.revision), name, reason)
            self.failures = failed
            await asyncio.gather(*leaving)


def _text(revision: Revision) -> str:
    return f"term {revision.term} revision {revision.number}"


def check_plan(assignment: Assignment, fleet: Fleet, where: str) -> None:
    """Refuse partitions that no accelerator of the node ``where`` can have.

    Raises:
        ServeError: BAD_INPUT; which partition, what is wrong, what is expected.
    """
    plan, there = assignment.plan, {gpu.id: gpu for gpu in fleet.gpus}
    ids = [part.id for part in plan.partitions]
    for part in plan.partitions:
        what = f"{where}: partition '{part.id}' of the assignment"
        if ids.count(part.id) > 1:
            raise bad_input(f"{what} is there twice")
        if part.gpu not in there:
            raise bad_input(f"{what} is on '{part.gpu}'; expected one of {', '.join(there)}")
        if not possible(part):
            expected = "expected every model once, batches from 1, rates and duty_ms from 0"
            raise bad_input(f"{what}: {expected}")
        for slot in part.slots:
            if slot.model not in assignment.models:
                raise bad_input(f"{what} has '{slot.model}', which is not among its models")
    for name, gpu in there.items():
        shares = [part.share_pct for part in plan.partitions if part.gpu == name]
        whole = all(gpu.legal([share]) for share in shares)
        if not (whole and (plan.overlapping or gpu.legal(shares))):
            legal = ", ".join(map(str, gpu.shares_pct))
            raise bad_input(
                f"{where}: {name} ({gpu.kind}) cannot be cut into {shares} %; it has {legal} %"
            )


#: A state stands for so long, and longer where making one takes more than this part of the time.
_FRESH_MS: Final = 10.0
_PART: Final = 0.02


@dataclass(slots=True)
class NodeStates:
    """The newest state, made when it is asked for and the last one is old."""

    _engine: Engine
    _table: ModelTable
    _clock: Clock
    _accepting: Callable[[], bool]
    _settled: Callable[[], bool]
    _assignments: Assignments
    began: InitVar[int]
    _apps: Mapping[str, ServedApp]
    _old_at_ms: float = 0.0
    _last: NodeState = field(init=False)

    def __post_init__(self, began: int) -> None:
        self._last = NodeState(began, 0, {}, accepting=False)

    def state(self) -> NodeState:
        """How this node is."""
        now_ms = self._clock.now_ms()
        accepting, told = self._accepting(), self._assignments
        settled = not told.under_way and self._settled()
        known = self._last.accepting, self._last.settled, self._last.revision
        if now_ms >= self._old_at_ms or (accepting, settled, told.revision) != known:
            self._last = replace(
                self._last, number=self._last.number + 1, models=self._models(now_ms),
                accepting=accepting, settled=settled, revision=told.revision,
                failures={**told.failures, **told.wanted.failures}, files=told.wanted.taken,
            )  # fmt: skip
            self._old_at_ms = now_ms + max(_FRESH_MS, self._took_ms(now_ms) / _PART)
        return self._last

    def _took_ms(self, since_ms: float) -> float:
        """How long a state took that was begun then."""
        return self._clock.now_ms() - since_ms

    def _models(self, now_ms: float) -> dict[str, ModelOutlook]:
        """By public name, of the version that a request without one gets."""
        outlooks = self._engine.outlooks(now_ms)
        newest = {served.model.name: served for served in self._table.all()}
        found = {
            name: replace(
                outlooks[served.key],
                arrived=_arrived(served),
                slo_ms=served.model.limit_ms,
                stateful=served.model.sequences is not None,
            )
            for name, served in newest.items()
            if served.ready and served.key in outlooks
        }
        for app in self._apps.values():  # those within others come first
            served, name = newest.get(app.model.name), app.model.name
            steps = [found[model] for model in app.app.members if model in found]
            if served is not None and served.ready and len(steps) == len(app.app.members):
                found[name] = _of_app(steps, app.model.terms.slo_ms, _arrived(served))
        return found


def _of_app(steps: Sequence[ModelOutlook], slo_ms: float, arrived: int) -> ModelOutlook:
    """As if its models ran one after the other; the slowest decides its pace."""
    return ModelOutlook(
        sum(one.wait_ms for one in steps),
        sum(one.alone_ms for one in steps),
        max(one.row_ms for one in steps),
        slo_ms,
        sum(one.cold_ms for one in steps),
        max(one.waiting_rows for one in steps),
        arrived,
        any(one.lent for one in steps),
    )


def _arrived(served: ServedModel) -> int:
    statistics = served.statistics
    return statistics.success + statistics.pending + sum(statistics.failures.values())
