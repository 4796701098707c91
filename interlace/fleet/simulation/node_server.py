"""A node's server in virtual time, from its start to its end: the parts of a live one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final
from urllib.parse import unquote

import msgspec

from interlace.control.deployments import Deployments, StatusFutures
from interlace.control.fleet_node import Assignments, NodeStates
from interlace.control.model_files import WantedModels
from interlace.control.model_preparer import PreparedModel
from interlace.control.registry import VersionRegistry
from interlace.core.errors import ServeError
from interlace.core.hardware import Fleet
from interlace.core.model import Format, Model, ServiceTerms
from interlace.core.node import Assignment, NodeDescription, NodeModel, Revision
from interlace.core.plan import Demand, as_rate_rps
from interlace.core.profile import Profile
from interlace.core.request import Callbacks, Reply, Request
from interlace.core.tensor import Signature
from interlace.engine.engine import Engine
from interlace.fleet.simulation.process import SimProcess
from interlace.fleet.simulation.scenario import FleetSimulation
from interlace.planning.follower import AssignedPlan
from interlace.runtime.plan_solver import AssignedPlanSolver
from interlace.runtime.runtime import Observer, Runtime
from interlace.server.administration.methods import AnswerTasks
from interlace.server.http.admin_handler import node_routes
from interlace.server.http.responses import error_response, response
from interlace.server.http.routes import AdminRequest, HttpResponse, RouteTable
from interlace.server.model_table import ModelTable, ServedModel
from interlace.sim.apps import SimulatedApps

#: How requests begin that ask for an inference, and for the node's state.
INFER: Final = b"POST /v2/models/"
STATE: Final = b"GET /v2/node/state "
#: Of a request's body: its number in the run.
NUMBER_BYTES: Final = 8
#: What a state takes for each turn of a model in a partition.
_TURN_MS: Final = 0.005
_ELAPSED: Final = b"\r\nInterlace-Elapsed-Ms: "
_ANSWER: Final = response(200, b"{}")
#: Sends a response.
Answer = Callable[[bytes], None]


class _AtHand(WantedModels):
    """Models that nobody has to fetch."""

    def __init__(self) -> None:
        self.taken, self.failures = "", {}


class _States(NodeStates):
    """States that take time, which virtual time does not show."""

    def _took_ms(self, since_ms: float) -> float:
        newest = self._assignments.newest
        parts = () if newest is None else newest.plan.partitions
        return _TURN_MS * sum(len(part.slots) for part in parts)


class SimulatedModels:
    """The models of a node: profiles instead of files, for its ``Assignments`` and devices."""

    def __init__(self, demand: Mapping[str, Demand], scenario: FleetSimulation, kind: str) -> None:
        """``demand`` is of all models, by public name; ``kind`` is the node's accelerators'."""
        self._demand, self._queue_limit = demand, scenario.queue_limit
        self._belief, self._truth = scenario.belief[kind], scenario.truth[kind]
        self._told = scenario.models(demand.values(), kind)
        self._serving: dict[str, Model] = {}
        self._generation = 0
        self.truth: dict[str, Profile] = {}  #: what deployed models really take, by deployment
        self.draining = False
        self.deployments: Deployments | None = None
        self.changed: Callable[[], None] = lambda: None  #: others are served than before

    def at_hand(self) -> dict[str, NodeModel]:
        """Every model that has a profile on this kind of accelerator."""
        return self._told

    def register(self, model: Model) -> None:
        self.truth[model.key] = self._truth[model.name]

    def forget(self, key: str) -> None:
        self.truth.pop(key, None)

    async def names(self) -> list[str]:
        return list(self._belief)

    async def digests(self, name: str) -> list[str]:
        return [""]

    async def load(self, name: str) -> None:
        assert self.deployments is not None
        self._generation += 1
        one = self._demand[name]
        rate_rps = as_rate_rps(one.rows_per_s)
        terms = ServiceTerms(one.slo_ms, rate_rps=rate_rps, queue_limit=self._queue_limit)
        signature = Signature((), (), True, one.max_batch)
        model = Model(
            name, 1, Format.PROFILE, "", "", signature, terms, generation=self._generation
        )
        self.register(model)
        await self.deployments.bring_up(PreparedModel(model, self._belief[name], {}))
        self._serving[name] = model
        self.changed()

    async def unload(self, name: str) -> None:
        assert self.deployments is not None
        model = self._serving.pop(name)
        self.changed()
        await self.deployments.take_down(model)

    def serving(self) -> set[str]:
        return set(self._serving)


class NodeServer:
    """One life of a node's process."""

    def __init__(
        self,
        description: NodeDescription,
        scenario: FleetSimulation,
        demand: Mapping[str, Demand],
        process: SimProcess,
        observers: Sequence[Observer],
    ) -> None:
        """``demand`` is of all models, by public name."""
        gpus = description.gpus
        self._slos_ms, self._now_ms = scenario.slos_ms, process.now_ms
        self._models = models = SimulatedModels(demand, scenario, gpus[0].kind)
        solver = AssignedPlanSolver(process)
        engine = Engine(Fleet(gpus), scenario.system)
        devices = {gpu.id: scenario.device(gpu, process, models.truth) for gpu in gpus}
        self._runtime = runtime = Runtime(
            engine, process, devices, solver, observers, scenario.epoch_ms
        )
        self._table = ModelTable()
        self._table.at_hand = models.at_hand()
        statuses = StatusFutures(VersionRegistry(), self._table)
        runtime.on_status = statuses.report
        models.deployments = Deployments(runtime, models, self._table, statuses)
        wanted = _AtHand()
        assignments = Assignments(runtime, Fleet(gpus), models, solver, wanted)
        self._apps = SimulatedApps(
            runtime,
            scenario.apps,
            {name: one.max_batch for name, one in demand.items()},
            key_of=lambda model: self._table.resolve(model).key,
        )
        models.changed = self._follow
        self._state = _States(
            engine,
            self._table,
            process,
            lambda: not models.draining,
            lambda: statuses.is_settled,
            assignments,
            description.began,
            self._apps.served,
        ).state

        self._routes = _routes(description, models, assignments, wanted)
        self._tasks = AnswerTasks()
        runtime.start()

    def receive(self, data: bytes, answer: Answer) -> None:
        """Answer a request, now or later."""
        method, path, rest = data.split(b" ", 2)
        if data.startswith(INFER):
            self._infer(path, rest, answer)
        elif data.startswith(STATE):
            answer(response(200, msgspec.json.encode(self._state())))
        else:
            found = self._routes.match(path.decode())
            assert found is not None, path
            route, names = found
            asked = AdminRequest(names, rest.partition(b"\r\n\r\n")[2])

            def respond(one: HttpResponse) -> None:
                answer(response(one.status, one.body, one.media))

            self._tasks.run(
                route.pattern,
                partial(route.respond[method.decode()], asked),
                respond,
                lambda error: answer(error_response(error)),
            )

    def _infer(self, path: bytes, rest: bytes, answer: Answer) -> None:
        model = unquote(path.decode()).split("/")[3]
        elapsed = rest.partition(_ELAPSED)[2]
        waited_ms = float(elapsed.partition(b"\r")[0]) if elapsed else 0.0
        try:
            served = self._table.resolve(model)
        except ServeError as error:
            answer(error_response(error))
            return
        served.statistics.pending += 1  # of these only how many came is asked for

        def replied(reply: Reply) -> None:
            self._runtime.delivered(reply)
            answer(_ANSWER if reply.error is None else error_response(reply.error))

        if served.key in self._apps.served:
            self._apps.begin(model, int.from_bytes(rest[-NUMBER_BYTES:]), replied, waited_ms)
            return
        now_ms = self._now_ms()
        deadline_ms = now_ms + self._slos_ms[model] - waited_ms
        request = Request(self._runtime.next_id(), served.key, now_ms, deadline_ms)
        self._runtime.submit(request, Callbacks(replied))

    def _follow(self) -> None:
        """Serve the apps whose models are all served."""
        serving = self._models.serving()
        for app in self._apps.served.values():
            key, there = app.model.key, serving.issuperset(app.app.members)
            known = any(one.model.key == key for one in self._table.all())
            if there and not known:
                self._table.publish(ServedModel(app.model))
            elif known and not there:
                self._table.withdraw(key)


def _routes(
    description: NodeDescription,
    models: SimulatedModels,
    assignments: Assignments,
    wanted: WantedModels,
) -> RouteTable:
    """What a controller asks of a node, and its orders."""

    async def assign(one: Assignment) -> Revision:
        return await assignments.assign(one, AssignedPlan(one.plan))

    return RouteTable(
        node_routes(
            lambda: description,
            models.at_hand,
            lambda: assignments.newest,
            assign,
            assignments.drain,
            wanted.order,
        )
    )
