"""Runs requests of apps: each step is submitted once the tensors that it reads are there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from interlace.apps.graph import App, ServedApp, Step
from interlace.apps.parts import (
    Held,
    TensorMemory,
    Value,
    added,
    fitted_input,
    in_app,
    left_out,
    overlap,
    own_outputs,
    row_count,
    stage_timing,
)
from interlace.core.errors import Reason, ServeError
from interlace.core.messages import AppEnded
from interlace.core.model import Format, Model
from interlace.core.request import (
    Callbacks,
    LaterStage,
    Outcome,
    Reply,
    Request,
    StageOf,
    StageTiming,
    Timing,
)
from interlace.core.tensor import Tensor
from interlace.runtime.runtime import Runtime

_ANSWERED: Final = (Outcome.OK, Outcome.LATE)
_EXPIRED: Final = ServeError(Reason.DEADLINE, "Request timeout expired")

#: The served model of a name and version. Raises ServeError.
FindModel = Callable[[str, str], Model]
#: Hears the reply of every step: deployment key of its model, reply, time in ms.
OnStep = Callable[[str, Reply, float], None]


@dataclass(eq=False)
class AppRuntime:
    """Takes requests of apps and of models, where a ``Runtime`` takes only those of models.

    A step's deadline is the app's less the time that is kept for the steps behind it. The first one
    tells the engine of all that follow, so it refuses an app on arrival if one cannot be in time.
    Intermediate tensors are references to the outputs of earlier steps. They are freed once their
    last reader has been answered. If a step fails, no further step begins, the others are
    cancelled, and the app is answered when none of its tensors is in use. At most
    ``intermediate_bytes`` of intermediate tensors are alive; beyond it, new requests of apps are
    refused.
    """

    runtime: Runtime
    find: FindModel
    on_step: OnStep
    memory: TensorMemory
    _intermediate_bytes: int

    def __post_init__(self) -> None:
        self.clock = self.runtime.clock
        #: hears of a request of an app, and of each one that it makes for a step
        self.on_asked: Callable[[Request, Request], None] = lambda whole, step: None
        self.held_bytes = 0
        self.served: dict[str, ServedApp] = {}  #: by deployment key
        self._open: dict[int, _AppRequest] = {}  #: by request id, until its reply is delivered

    @property
    def changes(self) -> int:
        return self.runtime.changes

    def next_id(self) -> int:
        return self.runtime.next_id()

    def count_refused(self, model: str, rows: int) -> None:
        if model not in self.served:
            self.runtime.count_refused(model, rows)

    def add(self, app: App, model: Model) -> None:
        """Take requests of an app; ``model`` is what clients see of it."""
        self.served[model.key] = ServedApp(app, model)

    def remove(self, key: str) -> None:
        """Refuse further requests of an app; those that were accepted are still answered."""
        self.served.pop(key, None)

    def members(self, key: str) -> set[str]:
        """The models that requests of a deployment key go to: of a model, itself."""
        served = self.served.get(key)
        if served is None:
            return {key}
        steps = (self.find(step.model, step.version).key for step in served.app.steps)
        return {member for step in steps for member in self.members(step)}

    def submit(self, request: Request, caller: Callbacks) -> None:
        """As ``Runtime.submit``, for requests of apps, too."""
        served = self.served.get(request.model)
        if served is None:
            self.runtime.submit(request, caller)
        elif self.held_bytes > self._intermediate_bytes:
            detail = f"{self.held_bytes} bytes are held between the steps of ensembles"
            error = ServeError(Reason.OVERLOADED, detail, retry_after_ms=100.0)
            caller.on_reply(Reply(request, Outcome.REFUSED, error=error))
        else:
            begun = self._open[request.id] = _AppRequest(self, served, request, caller)
            begun.begin()

    def cancel(self, request: Request) -> None:
        """As ``Runtime.cancel``: the reply still comes, when no step reads a tensor any more."""
        begun = self._open.get(request.id)
        if begun is None:
            self.runtime.cancel(request)
        else:
            begun.end(Outcome.CANCELLED, None)

    def forget(self, request: Request) -> None:
        """A request ended without outputs: no delivery follows."""
        self._open.pop(request.id, None)

    def delivered(self, reply: Reply) -> None:
        """As ``Runtime.delivered``."""
        begun = self._open.pop(reply.request.id, None)
        if begun is None:
            self.runtime.delivered(reply)
        else:
            begun.release()


@dataclass(slots=True)
class _AppRequest:
    """One request of an app under way.

    ``absent`` are tensors that never come: optional inputs and outputs of Python code that were
    left out, and outputs of steps that need one of them. ``running`` holds the requests of steps,
    by step and part. ``pending`` counts the parts of a step without an answer, and ``replies`` has
    the answers to the others.
    """

    owner: AppRuntime
    served: ServedApp
    request: Request
    caller: Callbacks
    values: dict[str, Value] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    waiting: set[int] = field(default_factory=set)
    running: dict[tuple[int, int], Request] = field(default_factory=dict)
    pending: dict[int, int] = field(default_factory=dict)
    replies: dict[int, list[Reply]] = field(default_factory=dict)
    rest_ms: list[float] = field(default_factory=list)
    later: tuple[LaterStage, ...] = ()  #: what follows the step that was submitted last
    followed: bool = False  #: the engine was told of some that follow
    held: list[Held] = field(default_factory=list)
    timings: list[Timing] = field(default_factory=list)
    stages: list[StageTiming] = field(default_factory=list)
    deaths: int = 0
    reason: tuple[Outcome, ServeError | None] | None = None  #: why it fails
    overdue: bool = False
    ended: bool = False

    def begin(self) -> None:
        for tensor in self.request.inputs:
            self.values[tensor.name] = Value(tensor, self._batched, None)
        inputs = {spec.name for spec in self.served.model.signature.inputs}
        self.absent = inputs - self.values.keys()
        self.waiting = set(self.served.app.needed(self._outputs()))
        self.rest_ms = self.served.rest_ms(self.request.deadline_ms - self.request.arrived_ms)
        self._go_on()

    def end(self, outcome: Outcome, error: ServeError | None) -> None:
        """Fail: begin no further step, cancel those that run; the first reason counts."""
        if self.reason is not None or self.ended:
            return
        self.reason = outcome, error and in_app(self.served.app.name, error)
        self.waiting.clear()
        for request in tuple(self.running.values()):
            self.owner.cancel(request)
        self._finish_if_done()

    def release(self) -> None:
        """The bytes of the app's outputs are no longer needed."""
        for held in self.held:
            if held.users:
                held.users = 1
                self._drop(held)
        self.held.clear()

    @property
    def _batched(self) -> bool:
        return self.served.model.signature.batched

    def _outputs(self) -> tuple[str, ...]:
        specs = self.served.model.signature.outputs
        return self.request.outputs or tuple(spec.name for spec in specs)

    def _go_on(self) -> None:
        """Begin the steps whose tensors are there."""
        if self.ended:
            return
        steps = self.served.app.steps
        for place in sorted(self.waiting):
            if self.absent.union(self.values).issuperset(steps[place].inputs.values()):
                self.waiting.discard(place)
                try:
                    self._submit(place, steps[place])
                except ServeError as error:
                    self.end(Outcome.FAILED, error)
        self._finish_if_done()

    def _submit(self, place: int, step: Step) -> None:
        model = self.owner.find(step.model, step.version)
        signature = model.signature
        needed = {step.inputs.get(spec.name) for spec in signature.inputs if not spec.optional}
        if needed & self.absent:
            self.absent.update(step.outputs.values())
            self._skipped(place)
            return
        inputs = self._inputs(step, model)
        rows = row_count(step.model, inputs) if signature.batched else 1
        if rows == 0:
            self._give_no_rows(step, model)
            self._skipped(place)
            return
        first = 1 if signature.batched else 0
        most = signature.max_batch
        parts = [inputs]
        if signature.batched and rows > most:
            parts = list(zip(*(self.owner.memory.cut(one, most) for one in inputs), strict=True))
        whole = self._part(step)
        requests = [
            Request(
                self.owner.next_id(),
                model.key,
                self.owner.clock.now_ms() if self.timings else self.request.arrived_ms,
                self.request.deadline_ms - self.rest_ms[place],
                part[0].shape[0] if signature.batched and part else 1,
                tuple((one.name, one.shape[first:]) for one in part),
                self.request.priority or model.terms.priority,
                part,
                self._wanted(step, model),
                self.request.context if model.format.hears_clients else None,
                part=whole,
            )
            for part in parts
        ]
        self.replies[place], self.pending[place] = [], len(requests)
        for number, request in enumerate(requests):
            if self.reason is not None:
                self._parts_ended(place, model, len(requests) - number)
                return
            self.running[place, number] = request
            self.owner.on_asked(self.request, request)
            heard = partial(self._heard, place, number, model)
            self.owner.submit(request, Callbacks(heard, self._too_long))
            self.followed = self.followed or (self.reason is None and bool(self.later))

    def _part(self, step: Step) -> StageOf:
        whole, begun = self.request, bool(self.timings or self.running)
        self.later = tuple(map(self._later, sorted(self.waiting)))
        return StageOf(step.name, whole.model, whole.id, whole.deadline_ms, self.later, begun)

    def _later(self, place: int) -> LaterStage:
        step, deadline_ms = self.served.app.steps[place], self.request.deadline_ms
        model = self.owner.find(step.model, step.version).key
        rows = round(step.rows * (self.request.rows if self._batched else 1))
        return LaterStage(model, rows, deadline_ms - self.rest_ms[place])

    def _give_no_rows(self, step: Step, model: Model) -> None:
        """A step without rows is not run: its outputs have none either."""
        for spec in model.signature.outputs:
            if (name := step.outputs.get(spec.name)) is not None and name in self._read():
                empty = self.owner.memory.no_rows(spec)
                self.values[name] = Value(empty._replace(name=name), True, None)

    def _skipped(self, place: int) -> None:
        for held in self._sources(place):
            self._drop(held)
        self._go_on_later()

    def _inputs(self, step: Step, model: Model) -> tuple[Tensor, ...]:
        found, batched = [], model.signature.batched
        for spec in model.signature.inputs:
            value = self.values.get(step.inputs.get(spec.name, ""))
            if value is not None:
                found.append(fitted_input(value, spec, batched, step.model))
        return tuple(found)

    def _wanted(self, step: Step, model: Model) -> tuple[str, ...]:
        """The outputs that a step or the client reads; empty if these are all."""
        read, specs = self._read(), model.signature.outputs
        names = tuple(spec.name for spec in specs if step.outputs.get(spec.name) in read)
        return () if len(names) == len(specs) else names

    def _read(self) -> set[str]:
        """Tensors that a step or the client reads."""
        read = set(self._outputs())
        for step in self.served.app.steps:
            read.update(step.inputs.values())
        return read

    def _too_long(self, error: ServeError) -> None:
        if self.caller.on_timeout is not None and not self.overdue:
            self.overdue = True
            self.caller.on_timeout(in_app(self.served.app.name, error))

    def _heard(self, place: int, number: int, model: Model, reply: Reply) -> None:
        request = self.running.pop((place, number))
        now_ms = self.owner.clock.now_ms()
        self.owner.on_step(request.model, reply, now_ms)
        self.deaths = max(self.deaths, reply.deaths)
        if reply.outcome in _ANSWERED:
            run_ms = max(0.0, now_ms - request.arrived_ms - reply.timing.queue_ms)
            self.served.ran(place, run_ms)
            self.replies[place].append(reply)
            step = self.served.app.steps[place]
            for name in left_out(step, reply, self._read()):
                if model.key in self.owner.served or model.format is Format.PYTHON:
                    self.absent.add(step.outputs[name])
                else:
                    detail = f"model '{step.model}' gave no output '{name}'"
                    self.end(Outcome.FAILED, ServeError(Reason.BACKEND, detail))
        elif reply.outcome is Outcome.REFUSED and (self.timings or number):
            self.end(Outcome.EXPIRED, reply.error or _EXPIRED)
        else:
            refused = reply.outcome is Outcome.REFUSED and reply.error
            if refused and refused.reason is Reason.DEADLINE:
                self.served.doubt()
            self.end(reply.outcome, reply.error or _EXPIRED)
        self._parts_ended(place, model, 1)

    def _parts_ended(self, place: int, model: Model, count: int) -> None:
        """Once all parts of a step are answered, store its outputs and let go of what it read."""
        self.pending[place] -= count
        if self.pending[place]:
            return
        del self.pending[place]
        replies = self.replies.pop(place)
        sources = [held for held in self._sources(place) if held.users]
        if self.reason is None:
            self.timings += [reply.timing for reply in replies]
            step, now_ms = self.served.app.steps[place], self.owner.clock.now_ms()
            self.stages.append(stage_timing(step.name, replies, now_ms))
            try:
                sources = self._store(place, model, replies, sources)
            except ServeError as error:
                self.end(Outcome.FAILED, error)
            if self.waiting and self.owner.clock.now_ms() > self.request.deadline_ms:
                self.end(Outcome.EXPIRED, _EXPIRED)
        else:
            for reply in replies:
                self.owner.delivered(reply)
        for held in sources:
            self._drop(held)
        self._go_on_later()

    def _go_on_later(self) -> None:
        if self.waiting:
            # Not from inside the answer: the engine's other commands come first.
            self.owner.clock.call_soon(self._go_on)
        else:
            self._finish_if_done()

    def _sources(self, place: int) -> list[Held]:
        """The earlier steps whose outputs this one reads."""
        found: list[Held] = []
        for name in self.served.app.steps[place].inputs.values():
            value = self.values.get(name)
            if value is not None and value.held is not None and value.held not in found:
                found.append(value.held)
        return found

    def _store(
        self, place: int, model: Model, replies: list[Reply], sources: list[Held]
    ) -> list[Held]:
        """Hold a step's outputs for their readers; returns the sources that are free of it."""
        app = self.served.app
        given = app.steps[place].outputs
        users = sum(reader in self.waiting for reader in app.readers[place])
        users += bool(set(self._outputs()).intersection(given.values()))
        outputs, blocks, kept = replies[0].outputs, None, replies
        if len(replies) > 1 or not users:
            try:
                if users:
                    replies.sort(key=lambda reply: reply.request.id)
                    outputs, blocks = self.owner.memory.join([one.outputs for one in replies])
            finally:
                for reply in replies:
                    self.owner.delivered(reply)
            if not users:
                return sources
            kept = []
        shared = [one for one in sources if overlap(outputs, one.outputs)]
        held = Held(outputs, kept[0] if kept else None, blocks, users, shared)
        self.held.append(held)
        self.owner.held_bytes += held.nbytes
        for tensor in outputs:
            if (name := given.get(tensor.name)) is not None:
                named = tensor._replace(name=name)
                self.values[name] = Value(named, model.signature.batched, held)
        return [one for one in sources if one not in shared]

    def _drop(self, held: Held) -> None:
        held.users -= 1
        if held.users == 0:
            self.owner.held_bytes -= held.nbytes
            if held.blocks is not None:
                held.blocks.free()
            elif held.reply is not None:
                self.owner.delivered(held.reply)
            for one in held.sources:
                self._drop(one)

    def _finish_if_done(self) -> None:
        if self.pending or self.waiting or self.ended:
            return
        if self.reason is None:
            try:
                outputs = own_outputs(
                    self.served.model, self.request, self._outputs(), self.values, self.absent
                )
            except ServeError as error:
                self.reason = Outcome.FAILED, in_app(self.served.app.name, error)
        self.ended = True
        if self.later and self.followed:
            ended = AppEnded(self.request.id)
            self.owner.clock.call_soon(lambda: self.owner.runtime.deliver(ended))
        if self.reason is not None:
            self.release()
            failed, why = self.reason
            self.owner.forget(self.request)
            stages = tuple(self.stages)
            self.caller.on_reply(
                Reply(self.request, failed, (), why, deaths=self.deaths, stages=stages)
            )
            return
        late = self.owner.clock.now_ms() > self.request.deadline_ms
        outcome = Outcome.LATE if late else Outcome.OK
        timing, stages = added(self.timings), tuple(self.stages)
        self.caller.on_reply(Reply(self.request, outcome, outputs, None, timing, stages=stages))
