"""Apps of several models in virtual time, by the decisions of the live server's ``AppRuntime``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Final

from msgspec import structs

from interlace.apps.graph import App, Step
from interlace.apps.parts import TensorMemory
from interlace.apps.runner import AppRuntime
from interlace.core.model import Format, Model, ServiceTerms
from interlace.core.request import Callbacks, Reply, Request
from interlace.core.tensor import Signature, Span, Tensor, TensorSpec
from interlace.runtime.runtime import Runtime
from interlace.sim.record import AppServed

_NOWHERE: Final = Span(0, 0, 0)
_KIND: Final = "UINT8"


@dataclass(frozen=True, slots=True)
class SimulatedApp:
    """An app of ``interlace.apps.graph.staged``, to be answered within ``slo_ms``."""

    app: App
    slo_ms: float


@dataclass(frozen=True, slots=True)
class _Stage(Model):
    """A model as one stage calls it; ``deployed`` is its deployment key."""

    deployed: str = ""

    @property
    def key(self) -> str:
        return self.deployed


class _NoBytes(TensorMemory):
    """Tensors with shapes and no bytes."""

    def __init__(self) -> None:
        """There is no arena."""

    def no_rows(self, spec: TensorSpec) -> Tensor:
        return Tensor(spec.name, _KIND, (0,), _NOWHERE)

    def join(self, parts: Sequence[Sequence[Tensor]]) -> tuple[tuple[Tensor, ...], None]:
        same = zip(*parts, strict=True)
        return tuple(_rows(one[0].name, sum(part.shape[0] for part in one)) for one in same), None


class SimulatedApps(AppRuntime):
    """Takes requests of apps where only times are real.

    How many rows a stage gets is drawn for each request, not for each run: equal for every system
    that plays the same trace.
    """

    def __init__(
        self,
        runtime: Runtime,
        apps: Mapping[str, SimulatedApp],
        max_batch: Mapping[str, int],
        on_ended: Callable[[AppServed], None] = lambda ended: None,
        key_of: Callable[[str], str] = lambda model: model,
    ) -> None:
        """``max_batch`` are the most rows of a batch, by model; ``key_of`` has deployment keys."""
        self._on_ended = on_ended
        self._simulated = apps
        self._rows: dict[int, dict[str, int]] = {}  #: still to be given, by request and stage
        self._sent: dict[int, tuple[str, int]] = {}  #: app, and rows of all stages, by request
        every = [step for one in apps.values() for step in one.app.steps]
        self._steps = {step.version: step for step in every}
        self._models = {step.version: _model(step, max_batch[step.model]) for step in every}
        super().__init__(
            runtime,
            lambda model, version: replace(self._models[version], deployed=key_of(model)),
            lambda model, reply, now_ms: None,
            _NoBytes(),
            1,
        )
        for one in apps.values():
            self.add(one.app, whole_model(one))

    def begin(
        self,
        name: str,
        number: int,
        answer: Callable[[Reply], None] = lambda reply: None,
        waited_ms: float = 0.0,
    ) -> None:
        """A request of an app arrives now, ``waited_ms`` after it was sent.

        Its ``number`` decides how many rows its stages get.
        """
        one, now_ms = self._simulated[name], self.clock.now_ms()
        rows = {
            step.name: _count(step.rows, f"{name}/{number}/{step.name}") for step in one.app.steps
        }
        whole, request_id = whole_model(one), self.next_id()
        inputs = tuple(_rows(each.name, rows[each.name[1:]]) for each in whole.signature.inputs)
        self._rows[request_id], self._sent[request_id] = rows, (name, 0)
        deadline_ms = now_ms + one.slo_ms - waited_ms
        request = Request(request_id, whole.key, now_ms, deadline_ms, inputs=inputs)
        self.submit(request, Callbacks(partial(self._answered, answer)))

    def submit(self, request: Request, caller: Callbacks) -> None:
        """As ``AppRuntime.submit``; replies to stages get outputs, which devices do not make."""
        if (part := request.part) is None:
            super().submit(request, caller)
            return
        name, sent = self._sent[part.request]
        self._sent[part.request] = name, sent + request.rows
        step = self._steps[f"{name}/{part.stage}"]
        rows = self._rows[part.request]

        def answered(reply: Reply) -> None:
            outputs = tuple(_rows(each, rows.pop(each, 0)) for each in step.outputs)
            caller.on_reply(structs.replace(reply, outputs=outputs))

        self.runtime.submit(request, Callbacks(answered))

    def _answered(self, answer: Callable[[Reply], None], reply: Reply) -> None:
        request, now_ms = reply.request, self.clock.now_ms()
        answer(reply)
        self.delivered(reply)
        del self._rows[request.id]
        name, sent = self._sent.pop(request.id)
        arrived_ms, deadline_ms = request.arrived_ms, request.deadline_ms
        ended = AppServed(name, arrived_ms, deadline_ms, now_ms, reply.outcome, sent)
        self._on_ended(ended)


def _rows(name: str, rows: int) -> Tensor:
    return Tensor(name, _KIND, (rows,), _NOWHERE)


def _model(step: Step, max_batch: int) -> _Stage:
    """A model that takes rows, or without batches, where several stages come before it."""
    batched = len(step.inputs) == 1
    dims = () if batched else (-1,)
    inputs, outputs = (
        tuple(TensorSpec(name, _KIND, dims) for name in names)
        for names in (step.inputs, step.outputs)
    )
    signature = Signature(inputs, outputs, batched, max_batch if batched else 1)
    return _Stage(step.model, 1, Format.PROFILE, "", "", signature, ServiceTerms(1.0))


def whole_model(one: SimulatedApp) -> Model:
    """The app as its callers see it."""
    tensors = {tensor for step in one.app.steps for tensor in step.inputs.values()}
    inputs = tuple(TensorSpec(n, _KIND, (-1,)) for n in sorted(tensors) if n.startswith(">"))
    leaves = [n for step in one.app.steps for n in step.outputs.values() if n not in tensors]
    signature = Signature(inputs, tuple(TensorSpec(n, _KIND, (-1,)) for n in leaves), False, 1)
    name, terms = one.app.name, ServiceTerms(one.slo_ms)
    return Model(name, 1, Format.ENSEMBLE, "", "", signature, terms)


def _count(rows: float, seed: str) -> int:
    """``rows`` rounded up or down, at random where it is no whole number."""
    whole = int(rows)
    return whole + (rows > whole and Random(seed).random() < rows - whole)
