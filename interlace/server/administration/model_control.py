"""Loading, unloading and readiness of models, as the code of models asks for them."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import msgspec

from interlace.core.deployment_key import model_name
from interlace.core.errors import Reason, ServeError, bad_input
from interlace.core.request import BlsCall
from interlace.runtime.clock import Clock
from interlace.server.administration.api import AdminApi
from interlace.server.administration.methods import AnswerTasks
from interlace.server.limits import FILES_BYTES
from interlace.shm.arena import ArenaMap


class ModelControlCalls:
    """Does what clients may ask for, within the time of the batch or load that asks.

    A load or unload goes on after that. It may have to wait for the very batch: a new plan can need
    its partition.
    """

    def __init__(self, api: AdminApi, clock: Clock, arenas: ArenaMap) -> None:
        self._api = api
        self._clock = clock
        self._arenas = arenas
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
            whose = "load" if call.timeout_us else "batch"
            text = f"{call.control} of '{call.model}' goes on: the time of the {whose} is over"
            once(ServeError(Reason.DEADLINE, text))

        what = f"{call.control} of '{call.model}' by '{model_name(call.caller)}'"
        self._tasks.run(what, lambda: self._begin(call), lambda done: once(None), once)
        limit_ms = call.timeout_us / 1000.0 or inf
        late_ms = min(call.deadline_ms, self._clock.now_ms() + limit_ms)
        if not answered and late_ms < inf:
            self._clock.call_at(late_ms, late)

    def _begin(self, call: BlsCall) -> object:
        name = call.model
        if call.control == "ready":
            if not self._api.model_ready(name, call.version):
                raise ServeError(Reason.NOT_READY, f"model '{name}' is not ready")
            return None
        caller = model_name(call.caller)
        if call.control == "unload":
            return self._api.unload(name, caller)
        if sum(tensor.span.nbytes for tensor in call.inputs) > FILES_BYTES:
            raise bad_input(f"files of '{name}': expected at most {FILES_BYTES} bytes")
        # Copied at once: they lie in the memory of a worker that may end.
        files = {tensor.name: bytes(self._arenas.view(tensor.span)) for tensor in call.inputs}
        parameters = msgspec.json.decode(call.context.parameters or "{}")
        return self._api.load(name, {**parameters, **files}, caller)
