"""KServe v2 inference without a transport: a checked call in, exactly one answer out."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from interlace.core.deployment_key import model_name
from interlace.core.errors import Reason, ServeError
from interlace.core.messages import Command, Event, Run, WorkFinished
from interlace.core.model import ServiceTerms
from interlace.core.request import (
    Callbacks,
    CallContext,
    Outcome,
    PartialResponse,
    Reply,
    Request,
)
from interlace.core.tensor import Span, Tensor
from interlace.server.dataplane.call import CheckedCall, DecodedRequest, InferenceCall
from interlace.server.dataplane.tensor_places import OutputTarget
from interlace.server.dataplane.validation import check, check_contents
from interlace.server.model_table import ModelTable, ServedModel, StreamStatistics
from interlace.server.spans import RequestSpans
from interlace.shm.arena import ArenaMap

if TYPE_CHECKING:
    from interlace.apps.runner import AppRuntime

_FILE: Final = "/proc/thread-self/schedstat"
_NS_PER_MS: Final = 1e6


class RunDelay:
    """The time the loop's thread was ready but not running before the present turn of the loop.

    What is read in a turn arrived up to so long before it. The kernel counts it (proc(5)), or else
    it is none. A timer calls ``all_ms``: else a request after a pause gets all waits of the pause.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._turn_s = float("-inf")
        self._total_ns = 0
        self._waited_ms = self._all_ms = 0.0
        try:
            self._file = os.open(_FILE, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = -1

    def ms(self) -> float:
        """The wait before this turn; only the first call of a turn reads it."""
        turn_s = self._loop.time()
        if turn_s != self._turn_s and self._file >= 0:
            self._turn_s = turn_s
            total_ns = int(os.pread(self._file, 64, 0).split()[1])
            self._waited_ms = (total_ns - self._total_ns) / _NS_PER_MS if self._total_ns else 0.0
            self._total_ns = total_ns
            self._all_ms += self._waited_ms
        return self._waited_ms

    def all_ms(self) -> float:
        """All waits until now."""
        self.ms()
        return self._all_ms

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


#: Deaths from which on a request is refused, for how long after the last, and of how many requests
#: that is remembered.
DEATHS: Final = 2
KEPT_MS: Final = 600_000.0
KEPT: Final = 256
#: An input is identified by so many bytes from each end.
_END_BYTES: Final = 1 << 19

View = Callable[[Span], memoryview]
#: Called in place of a reply, for a call that is refused before it reaches the engine.
OnError = Callable[[ServeError], None]


class Quarantine:
    """Digests of inputs by deployment key, with the deaths that each caused.

    Nothing is computed for models that none is remembered of.
    """

    def __init__(self, view: View) -> None:
        self._view = view
        self._known: OrderedDict[tuple[str, bytes], tuple[int, float]] = OrderedDict()
        self._models: frozenset[str] = frozenset()

    def suspects(self, key: str) -> bool:
        """True if something is remembered of that deployment."""
        return key in self._models

    def died(self, key: str, inputs: Sequence[Tensor], deaths: int, now_ms: float) -> None:
        """Enter that so many processes ended while they ran this, and nothing else."""
        name = (key, self._digest(inputs))
        before, _ = self._known.pop(name, (0, 0.0))
        self._known[name] = before + deaths, now_ms
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        self._models = frozenset(model for model, _ in self._known)

    def check(self, key: str, inputs: Sequence[Tensor], now_ms: float) -> None:
        """Refuse what has ended its worker too often.

        Raises:
            ServeError: BACKEND, with when it may be tried again.
        """
        self._forget(now_ms)
        deaths, last_ms = self._known.get((key, self._digest(inputs)), (0, 0.0))
        if deaths < DEATHS:
            return
        left_ms = last_ms + KEPT_MS - now_ms
        raise ServeError(
            Reason.BACKEND,
            f"not run: these inputs ended the worker of '{model_name(key)}' {deaths} times; "
            f"they are tried again after {left_ms / 1000.0:.0f} s, or when the model is reloaded",
            retry_after_ms=left_ms,
        )

    def _forget(self, now_ms: float) -> None:
        old = [name for name, (_, last_ms) in self._known.items() if last_ms + KEPT_MS <= now_ms]
        for name in old:
            del self._known[name]
        if old:
            self._models = frozenset(model for model, _ in self._known)

    def _digest(self, inputs: Sequence[Tensor]) -> bytes:
        digest = hashlib.blake2b(digest_size=16)
        for tensor in inputs:
            data = self._view(tensor.span)
            digest.update(repr((tensor.name, tensor.datatype, tensor.shape)).encode())
            digest.update(data[:_END_BYTES])
            digest.update(data[max(_END_BYTES, len(data) - _END_BYTES) :])
        return digest.digest()


class ResponseTimes:
    """Enters the responses to one request in its model's statistics, and passes them on."""

    def __init__(
        self,
        statistics: StreamStatistics,
        terms: ServiceTerms,
        arrived_ms: float,
        now_ms: Callable[[], float],
        respond: Callable[[PartialResponse], None],
    ) -> None:
        self._statistics = statistics
        self._terms = terms
        self._arrived_ms = arrived_ms
        self._now_ms = now_ms
        self._respond = respond
        self._first_ms = self._last_ms = 0.0

    def __call__(self, response: PartialResponse) -> None:
        now_ms, statistics, terms = self._now_ms(), self._statistics, self._terms
        if response.outputs or response.error is not None:
            if not self._first_ms:
                self._first_ms = now_ms
                statistics.first.add(now_ms - self._arrived_ms, terms.first_response_ms)
            else:
                statistics.gap.add(now_ms - self._last_ms, terms.gap_ms)
            self._last_ms = now_ms
        if response.final and self._first_ms:
            statistics.ended(now_ms - self._first_ms)
        self._respond(response)


#: Requests taken but not answered yet, over all models and transports.
IN_FLIGHT_LIMIT: Final = 8192
#: The least time that a refusal holds while nothing changes, as a part of the SLO.
HOLD: Final = 0.05
#: The most of its SLO that a request is taken to have waited before it was read.
WAITED: Final = 0.1
_NEVER: Final = float("-inf")
#: Parameters that mean something to the server: a model's code does not get them, as in Triton.
_RESERVED: Final = frozenset({"priority", "binary_data_output", "slo_ms"})


class DataPlane:
    """Checks calls, hands them to the runtime, counts them. One thread calls everything."""

    def __init__(
        self,
        runtime: AppRuntime,
        table: ModelTable,
        arenas: ArenaMap,
        in_flight_limit: int = IN_FLIGHT_LIMIT,
        waited_ms: Callable[[], float] = lambda: 0.0,
        spans: RequestSpans | None = None,
    ) -> None:
        """``waited_ms`` says how long what is read now may have waited to be.

        ``spans`` hears of every request, if there are any to be made.
        """
        self.accepting = True
        self.in_flight = 0
        self.last_request_ms = _NEVER  #: when the engine last got a request
        self._runtime = runtime
        self._now_ms = runtime.clock.now_ms
        self._table = table
        self._arenas = arenas
        self._waited_ms = waited_ms
        self._spans = spans
        self._in_flight_limit = in_flight_limit
        self._quarantine = Quarantine(arenas.view)
        self._refusing_until_ms = _NEVER  # the latest time that known_refusal may answer
        self._empty: asyncio.Event | None = None  # made when ``drained`` waits

    def infer(self, call: InferenceCall, caller: Callbacks, on_error: OnError) -> Request | None:
        """Take a call in.

        ``on_error`` is called at once for a call that is wrong, or that cannot be taken now;
        otherwise ``caller`` gets a reply, perhaps before this returns. Whoever calls keeps the
        input bytes in place until then, and reports ``delivered(reply)`` when the bytes of the
        reply's outputs are no longer needed. Models that are decoupled need ``on_response``.

        Returns:
            The request, for ``cancel``; ``None`` if it was refused through ``on_error``.
        """
        try:
            served = self._table.resolve(call.model, call.version)
        except ServeError as error:
            self._refuse(call, error, on_error)
            return None
        if self.refusing:
            refusal = self.known_refusal(call.decoded)
            if refusal is not None:
                self._refuse(call, refusal, on_error)
                return None
        try:
            checked = self._checked(served, call)
            if served.model.signature.decoupled and caller.on_response is None:
                what = "doesn't support models with decoupled transaction policy"
                raise ServeError(Reason.UNSUPPORTED, f"{call.endpoint} {what}")
            request = self._request(checked, call)
        except ServeError as error:
            served.statistics.refused(error)
            self._refuse(call, error, on_error)
            return None
        if self._spans is not None:
            self._spans.begin(request, call.trace)
        self._submit(request, checked, caller)
        return request

    def _refuse(self, call: InferenceCall, error: ServeError, on_error: OnError) -> None:
        if self._spans is not None:
            self._spans.refused(call.model, call.version, call.trace, error)
        on_error(error)

    def cancel(self, request: Request) -> None:
        """The client went away; the reply still comes, when the inputs are not in use."""
        self._runtime.cancel(request)

    def delivered(self, reply: Reply) -> None:
        """The bytes of the reply's outputs are no longer needed."""
        self._runtime.delivered(reply)

    @property
    def refusing(self) -> bool:
        """Whether ``known_refusal`` may have an answer now."""
        if self._refusing_until_ms == _NEVER:
            return False
        if self._refusing_until_ms <= self._now_ms():
            self._refusing_until_ms = _NEVER
        return self._refusing_until_ms != _NEVER

    def known_refusal(self, decoded: DecodedRequest) -> ServeError | None:
        """Why such a call would be refused now, where that is known without its inputs.

        The engine refused the same a moment ago, and nothing happened since that makes room. The
        call is counted as refused: the caller of this gives the refusal to its client.
        """
        checked = decoded.checked
        if checked is None or checked.refusal is None or not self.accepting:
            return None
        if checked.changes != self._runtime.changes or self._now_ms() >= checked.until_ms:
            checked.refusal = None
            return None
        checked.served.statistics.refused(checked.refusal)
        self._runtime.count_refused(checked.key, checked.rows)
        return checked.refusal

    def stop_accepting(self) -> None:
        """Refuse every call from now on; what was taken is still answered."""
        self.accepting = False

    async def drained(self) -> None:
        """Return when nothing that was taken is left unanswered."""
        while self.in_flight:
            self._empty = self._empty or asyncio.Event()
            self._empty.clear()
            await self._empty.wait()

    def _checked(self, served: ServedModel, call: InferenceCall) -> CheckedCall:
        if not (self.accepting or call.accepted):
            raise ServeError(Reason.NOT_READY, "the server is shutting down", retry_after_ms=1000.0)
        if self.in_flight >= self._in_flight_limit and not call.accepted:
            raise ServeError(
                Reason.OVERLOADED,
                f"Exceeds maximum queue size: {self.in_flight} requests are in flight",
                retry_after_ms=100.0,
            )
        checked = call.decoded.checked
        if checked is None or checked.served is not served:
            checked = call.decoded.checked = check(served, call)
        return checked

    def _request(self, checked: CheckedCall, call: InferenceCall) -> Request:
        inputs = tuple([call.inputs[i] for i in checked.order])
        for i in checked.inspect:
            check_contents(inputs[i], self._arenas.view(inputs[i].span))
        served, slo_ms = checked.served, checked.slo_ms
        first_ms = served.model.terms.first_response_ms
        if first_ms is not None:  # the first response is in time if the last one is by then
            slo_ms = min(slo_ms, first_ms + served.statistics.streams.rest_ms)
        now_ms = self._now_ms() - min(self._waited_ms(), WAITED * slo_ms) - call.elapsed_ms
        if self._quarantine.suspects(checked.key):
            self._quarantine.check(checked.key, inputs, now_ms)
        if call.budget_ms is not None and call.budget_ms + call.elapsed_ms < slo_ms:
            slo_ms = call.budget_ms + call.elapsed_ms
        return Request(
            self._runtime.next_id(),
            checked.key,
            now_ms,
            now_ms + slo_ms,
            checked.rows,
            checked.shape,
            checked.priority,
            inputs,
            checked.outputs,
            _context(call) if served.model.format.hears_clients else None,
            served.model.signature.decoupled,
            checked.sequence,
        )

    def _submit(self, request: Request, checked: CheckedCall, caller: Callbacks) -> None:
        statistics = checked.served.statistics
        statistics.pending += 1
        self.in_flight += 1
        self.last_request_ms = request.arrived_ms

        def answer(reply: Reply) -> None:
            statistics.pending -= 1
            self.in_flight -= 1
            now_ms = self._now_ms()
            statistics.record(reply, now_ms)
            if self._spans is not None:
                self._spans.end(reply, now_ms)
            if reply.deaths:
                self._quarantine.died(request.model, request.inputs, reply.deaths, now_ms)
            if self._empty is not None and not self.in_flight:
                self._empty.set()
            if reply.outcome is Outcome.REFUSED and reply.error is not None:
                self._keep(checked, request, reply.error)
            caller.on_reply(reply)

        heard = caller.on_response
        if request.streams and heard is not None:
            terms, now_ms = checked.served.model.terms, self._now_ms
            heard = ResponseTimes(statistics.streams, terms, request.arrived_ms, now_ms, heard)
        self._runtime.submit(request, Callbacks(answer, caller.on_timeout, heard))

    def _keep(self, checked: CheckedCall, request: Request, error: ServeError) -> None:
        """Remember a refusal for as long as it holds.

        A later request has a later deadline: it is late by less, and at last not at all. A request
        with a tighter deadline than its parameters say is refused, too.

        If a queue is full to the last deadline, a refusal would hold for the time of one row, and
        the engine would have to judge every second request. So it holds a little longer, until
        something changes; the queue is shorter by that time.
        """
        slo_ms = checked.slo_ms
        whole = request.deadline_ms - request.arrived_ms >= slo_ms
        if whole and error.reason is Reason.OVERLOADED and error.late_ms:
            checked.refusal, checked.changes = error, self._runtime.changes
            checked.until_ms = request.arrived_ms + max(error.late_ms, HOLD * slo_ms)
            self._refusing_until_ms = max(self._refusing_until_ms, checked.until_ms)


def _context(call: InferenceCall) -> CallContext:
    parameters = call.decoded.parameters
    given = {key: value for key, value in parameters.items() if key not in _RESERVED}
    return CallContext(call.id, msgspec.json.encode(given).decode() if given else "")


def output_order(wanted: Sequence[OutputTarget], outputs: Sequence[Tensor]) -> tuple[int, ...]:
    """Positions of a reply's outputs in the order the client named them; none named asks for all.

    Raises:
        ServeError: the model gave no such output.
    """
    if not wanted:
        return tuple(range(len(outputs)))
    at = {tensor.name: i for i, tensor in enumerate(outputs)}
    try:
        return tuple([at[each.name] for each in wanted])
    except KeyError as error:
        raise ServeError(
            Reason.BACKEND, f"the model gave no output {error}; it gave {sorted(at)}"
        ) from error


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


class ExecutionCounter:
    """Counts executions and their phases by batch size, as statistics report them."""

    def __init__(self, table: ModelTable) -> None:
        self._table = table

    def __call__(self, now_ms: float, event: Event, commands: Sequence[Command]) -> None:
        if (
            type(event) is not WorkFinished
            or type(event.work) is not Run
            or event.failure is not None
        ):
            return
        batch, timing = event.work.batch, event.timing
        statistics = self._table.statistics(batch.model)
        if statistics is not None:
            statistics.executed(batch.rows, timing.input_ms, timing.infer_ms, timing.output_ms)
