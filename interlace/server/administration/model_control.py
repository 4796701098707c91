"""Loading, unloading and readiness of models, as the code of models asks for them."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import msgspec

from interlace.core.deployment_key import model_name
from interlace.core.errors import Reason, ServeError, bad_input
from interlace.core.request import BlsCall
from interlace.runtime.clock import Clock
from interlace.server.administration.methods import AdminAnswers, AnswerTasks


class ModelControlCalls:
    """Does what clients may ask for, within the time of the batch that asks.

    A load or unload goes on after that. It may have to wait for the very batch: a new plan can need
    its partition.
    """

    def __init__(self, api: AdminAnswers, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._tasks = AnswerTasks()

    def take(self, call: BlsCall, answer: Callable[[ServeError | None], None]) -> None:
        """Call ``answer`` exactly once: with ``None`` when it is done, else with why not."""
        answered = False

        def once(error: ServeError | None) -> None:
            nonlocal answered
            if not answered:
                answered = True
                answer(error)

        def late() -> None:
            text = f"{call.control} of model '{call.model}' goes on: the time of the batch is over"
            once(ServeError(Reason.DEADLINE, text))

        what = f"{call.control} of '{call.model}' by '{model_name(call.caller)}'"
        self._tasks.run(what, lambda: self._begin(call), lambda done: once(None), once)
        if not answered and call.deadline_ms < inf:
            self._clock.call_at(call.deadline_ms, late)

    def _begin(self, call: BlsCall) -> object:
        name = call.model
        if call.control == "ready":
            if not self._api.model_ready(name, call.version):
                raise ServeError(Reason.NOT_READY, f"model '{name}' is not ready")
            return None
        if name == model_name(call.caller):
            raise bad_input(f"model '{name}' cannot {call.control} itself while it runs a batch")
        if call.control == "load":
            return self._api.load(name, msgspec.json.decode(call.context.parameters or "{}"))
        return self._api.unload(name)
