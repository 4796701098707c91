"""Calls of models by other models' code: as those of clients, within their caller's deadline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from interlace.core.deployment_key import model_name
from interlace.core.errors import Reason, ServeError
from interlace.core.request import BlsCall, Callbacks, PartialResponse, Reply, Request
from interlace.runtime.clock import Clock
from interlace.server.dataplane.call import DecodedRequest, InferenceCall
from interlace.server.dataplane.plane import DataPlane, failure
from interlace.server.dataplane.tensor_places import OutputTarget
from interlace.server.model_table import ModelTable


def _no_control(call: BlsCall, answer: Callable[[ServeError | None], None]) -> None:
    answer(ServeError(Reason.NOT_READY, f"the server has not started: {call.control}"))


@dataclass(slots=True)
class ModelCalls:
    """Submits calls, unless models would then call each other in a circle.

    A batch that waits for a call keeps its model busy in its partition. If a model that it called
    could call it in turn, each could wait for the other's partitions. So an order of models is
    kept: a model that was called, also through others, cannot call back. It is one of deployments:
    the new code of a reloaded model may call other models.
    """

    _plane: DataPlane
    _table: ModelTable
    _clock: Clock
    #: The models of an ensemble, by deployment keys; a model is its own.
    _members: Callable[[str], Iterable[str]]
    #: Takes calls that ask the server, and answers.
    control: Callable[[BlsCall, Callable[[ServeError | None], None]], None] = _no_control
    _called: dict[str, set[str]] = field(default_factory=dict)  #: by deployment key of the caller

    def call(
        self,
        call: BlsCall,
        answer: Callable[[Reply | ServeError | None], None],
        respond: Callable[[PartialResponse], None] | None = None,
    ) -> Request | None:
        """As ``device.base.Callees``."""
        if call.control:
            self.control(call, answer)
            return None
        try:
            self._check_order(call)
        except ServeError as error:
            answer(error)
            return None
        parameters = msgspec.json.decode(call.context.parameters or "{}")
        if call.timeout_us:
            parameters["timeout"] = call.timeout_us
        targets = tuple(OutputTarget(name, None) for name in call.outputs)
        decoded = DecodedRequest(call.context.id, (), targets, parameters)
        made = InferenceCall(
            call.model,
            call.version,
            call.context.id,
            call.inputs,
            decoded,
            call.deadline_ms - self._clock.now_ms(),
            accepted=True,
            endpoint="BLS",
        )

        def replied(reply: Reply) -> None:
            error = failure(reply)
            if error is not None:
                self._plane.delivered(reply)
            answer(error or reply)

        return self._plane.infer(made, Callbacks(replied, on_response=respond), answer)

    def cancel(self, request: Request) -> None:
        """As ``device.base.Callees``."""
        self._plane.cancel(request)

    def delivered(self, reply: Reply) -> None:
        """As ``device.base.Callees``."""
        self._plane.delivered(reply)

    def _check_order(self, call: BlsCall) -> None:
        """Enter who calls whom.

        Raises:
            ServeError: BAD_INPUT, the called model is the caller or calls it, also through others;
                or no such model is served.
        """
        callee = self._table.resolve(call.model, call.version).key
        known = self._called.get(call.caller, set())
        new = set(self._members(callee)) - known
        for key in new:
            if way := way_of_calls(self._called, key, call.caller):
                chain = " -> ".join(map(model_name, (call.caller, *way)))
                raise ServeError(
                    Reason.BAD_INPUT,
                    f"model '{model_name(call.caller)}' cannot call '{call.model}': models would "
                    f"call each other in a circle: {chain}",
                )
        if new:
            served = {one.key for one in self._table.all()}
            self._called = {key: to for key, to in self._called.items() if key in served}
            self._called[call.caller] = known | new


def way_of_calls(called: Mapping[str, Iterable[str]], start: str, end: str) -> tuple[str, ...]:
    """The models by whose calls one leads to another, both included; empty if none do."""
    ways: list[tuple[str, ...]] = [(start,)]
    seen = {start}
    for way in ways:
        if way[-1] == end:
            return way
        for key in called.get(way[-1], ()):
            if key not in seen:
                seen.add(key)
                ways.append((*way, key))
    return ()
