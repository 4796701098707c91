"""KServe v2 inference without a transport: a checked call in, exactly one answer out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from interlace.core.errors import Reason, ServeError
from interlace.core.request import Outcome, Reply, Request
from interlace.core.tensor import Span, Tensor
from interlace.runtime.clock import Clock
from interlace.server.call import Call, OnError, OnReply
from interlace.server.check import Checked, check, check_contents
from interlace.server.quarantine import Quarantine
from interlace.server.table import ModelTable, Served

#: Requests taken but not answered yet, over all models and transports.
IN_FLIGHT_LIMIT = 8192


class Backend(Protocol):
    """What the data plane needs of the runtime."""

    @property
    def clock(self) -> Clock: ...
    def next_id(self) -> int: ...
    def submit(
        self,
        request: Request,
        answer: Callable[[Reply], None],
        give_up: Callable[[ServeError], None] | None = None,
    ) -> None: ...
    def cancel(self, request: Request) -> None: ...
    def delivered(self, reply: Reply) -> None: ...


class Bytes(Protocol):
    """Where tensors can be read; an ``ArenaMap``."""

    def view(self, span: Span) -> memoryview: ...


class _Found:
    """What a form was checked against, and what came of it."""

    __slots__ = ("checked", "key", "served")

    def __init__(self, served: Served, checked: Checked) -> None:
        self.served = served
        self.key = served.key
        self.checked = checked


class DataPlane:
    """Checks calls, hands them to the runtime, keeps the ledgers. One thread calls everything."""

    def __init__(
        self,
        runtime: Backend,
        table: ModelTable,
        arenas: Bytes,
        in_flight_limit: int = IN_FLIGHT_LIMIT,
    ) -> None:
        self.accepting = True
        self.in_flight = 0
        self.delivered = runtime.delivered
        self.cancel = runtime.cancel
        self._runtime = runtime
        self._now_ms = runtime.clock.now_ms
        self._table = table
        self._arenas = arenas
        self._in_flight_limit = in_flight_limit
        self._quarantine = Quarantine(arenas.view)
        self._empty: asyncio.Event | None = None  # made by whoever waits for the last answer

    def infer(
        self,
        call: Call,
        on_reply: OnReply,
        on_error: OnError,
        on_give_up: OnError | None = None,
    ) -> Request | None:
        """Take a call in.

        ``on_error`` is called at once for a call that is wrong, or that cannot be taken now;
        otherwise ``on_reply`` is called exactly once, perhaps before this returns. The caller
        keeps the input bytes in place until then, and reports ``delivered(reply)`` when the bytes
        of the reply's outputs are no longer needed. ``on_give_up`` is called before, at most once,
        if the request runs far longer than was predicted: the client is to be told then, while the
        inputs stay where they are until the reply.

        Returns:
            The request, for ``cancel``; ``None`` if it was refused through ``on_error``.
        """
        try:
            served = self._table.resolve(call.model, call.version)
        except ServeError as error:
            on_error(error)
            return None
        try:
            request = self._request(served, call)
        except ServeError as error:
            served.ledger.refused(error)
            on_error(error)
            return None
        self._submit(served, request, on_reply, on_give_up)
        return request

    def stop_accepting(self) -> None:
        """Refuse every call from now on; what was taken is still answered."""
        self.accepting = False

    async def drained(self) -> None:
        """Return when nothing that was taken is left unanswered."""
        while self.in_flight:
            self._empty = self._empty or asyncio.Event()
            self._empty.clear()
            await self._empty.wait()

    def _request(self, served: Served, call: Call) -> Request:
        if not self.accepting:
            raise ServeError(Reason.NOT_READY, "the server is shutting down", retry_after_ms=1000.0)
        if self.in_flight >= self._in_flight_limit:
            raise ServeError(
                Reason.OVERLOADED,
                f"Exceeds maximum queue size: {self.in_flight} requests are in flight",
                retry_after_ms=100.0,
            )
        form = call.form
        found = None if form is None else form.checked
        if type(found) is not _Found or found.served is not served:
            found = _Found(served, check(served.model, call))
            if form is not None:
                form.checked = found
        checked = found.checked
        inputs = tuple([call.inputs[i] for i in checked.order])
        if checked.inspect:
            self._inspect(inputs, checked)
        now_ms = self._now_ms()
        if self._quarantine.suspects(found.key):
            self._quarantine.check(found.key, inputs, now_ms)
        slo_ms = checked.slo_ms
        if call.budget_ms is not None and call.budget_ms < slo_ms:
            slo_ms = call.budget_ms
        return Request(
            self._runtime.next_id(),
            found.key,
            now_ms,
            now_ms + slo_ms,
            checked.rows,
            checked.shape,
            checked.priority,
            inputs,
            checked.outputs,
        )

    def _inspect(self, inputs: tuple[Tensor, ...], checked: Checked) -> None:
        for i in checked.inspect:
            check_contents(inputs[i], self._arenas.view(inputs[i].span))

    def _submit(
        self, served: Served, request: Request, on_reply: OnReply, on_give_up: OnError | None
    ) -> None:
        ledger = served.ledger
        ledger.pending += 1
        self.in_flight += 1

        def answer(reply: Reply) -> None:
            ledger.pending -= 1
            self.in_flight -= 1
            now_ms = self._now_ms()
            ledger.record(reply, now_ms)
            if reply.deaths:
                self._quarantine.died(request.model, request.inputs, reply.deaths, now_ms)
            if self._empty is not None and not self.in_flight:
                self._empty.set()
            on_reply(reply)

        self._runtime.submit(request, answer, on_give_up)


def failure(reply: Reply) -> ServeError | None:
    """Why a reply carries no outputs; ``None`` if it does."""
    if reply.outcome is Outcome.OK or reply.outcome is Outcome.LATE:
        return None
    if reply.error is not None:
        return reply.error
    if reply.outcome is Outcome.CANCELLED:
        return ServeError(Reason.CANCELLED, "the client went away")
    if reply.outcome is Outcome.FAILED:
        return ServeError(Reason.BACKEND, "the model failed and gave no reason")
    return ServeError(Reason.DEADLINE, "Request timeout expired")
