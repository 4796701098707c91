"""One batch of a model that takes its requests one by one, and its responses before the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from threading import Lock
from time import perf_counter, sleep
from typing import Final

from interlace.core.errors import Reason, ServeError
from interlace.core.request import CallContext
from interlace.core.tensor import Span, Tensor
from interlace.device.cpu.execution import BatchInputs, InputArray, output_bytes
from interlace.device.cpu.inbox import Inbox
from interlace.device.cpu.model_calls import BatchCalls
from interlace.device.process.batch_frames import error_result
from interlace.device.process.error_text import OutputTooLargeError
from interlace.device.process.output_arena import OutputBlocks
from interlace.device.process.wire import (
    BatchResult,
    RequestHead,
    RequestResult,
    Responded,
    RunBatch,
)
from interlace.formats.python_backend.runner import PythonRunner
from interlace.formats.runner import (
    Answer,
    Array,
    ModelResponse,
    RequestInputs,
    TypedArray,
)


def execute_requests(
    run: RunBatch,
    runner: PythonRunner,
    batched: bool,
    intake: BatchInputs,
    inbox: Inbox,
    streams: ResponseStreams,
    calls: BatchCalls,
) -> BatchResult:
    """Run a batch to its answer; requests may have outputs of different shapes, or none.

    Its code may make ``calls`` of other models, and respond before the answer by ``streams``.

    Raises:
        Exception: whatever the model raises; nothing stays allocated then.
    """
    started = perf_counter()
    heads = _heads(run)
    stacked = runner.stacked and len(run.rows) > 1
    together = run.staged or stacked
    sources = intake.sources(run, batched) if together else {}
    try:
        given = _cut_inputs(run, sources, batched) if together else intake.by_request(run, batched)
        requests = [_request(*one, streams) for one in zip(heads, given, strict=True)]
        gathered = perf_counter()
        try:
            if stacked:
                requests = [_stacked(run, requests, sources)]
            answers = runner.run_requests(requests, calls.begin)
        finally:
            calls.end()
        if stacked:
            answers = _cut(run.rows, *answers)
        return _result(run, batched, answers, inbox.blocks, streams, (started, gathered))
    finally:
        intake.release(sources)


def _heads(run: RunBatch) -> Sequence[RequestHead]:
    return run.heads or (RequestHead(CallContext(), run.wanted),) * len(run.rows)


def _result(
    run: RunBatch,
    batched: bool,
    answers: Sequence[Answer],
    blocks: OutputBlocks,
    streams: ResponseStreams,
    times_s: tuple[float, float],
) -> BatchResult:
    """The answer of a batch that began, and had its inputs, at these times.

    Raises:
        OutputTooLargeError, MemoryError: no room for its outputs.
    """
    if failed := streams.failed:
        pairs = zip(_heads(run), answers, strict=True)
        answers = [failed.get(head.request, answer) for head, answer in pairs]
    began, gathered, inferred = *times_s, perf_counter()
    results, block = place(answers, blocks, blocks.take)
    held = block is not None
    if block is not None:
        blocks.hold(run.batch, [block])
    ended = perf_counter()
    took_ms = (gathered - began) * 1e3, (inferred - gathered) * 1e3, (ended - inferred) * 1e3
    return BatchResult(run.batch, (), batched, held, *took_ms, results=results)


def _request(
    head: RequestHead, inputs: Mapping[str, Array], streams: ResponseStreams
) -> RequestInputs:
    respond = partial(streams.respond, head.request)
    cancelled = partial(streams.cancelled, head.request)
    return RequestInputs(inputs, head.context, head.outputs, respond, cancelled)


def _cut_inputs(
    run: RunBatch, sources: Mapping[str, InputArray], batched: bool
) -> list[dict[str, Array]]:
    """Each request's part of a batch whose rows lie together."""
    if not batched:
        return [{name: source.array for name, source in sources.items()}]
    return [
        {name: source.array[end - rows : end] for name, source in sources.items()}
        for end, rows in zip(accumulate(run.rows), run.rows, strict=True)
    ]


def _stacked(
    run: RunBatch, requests: Sequence[RequestInputs], sources: Mapping[str, InputArray]
) -> RequestInputs:
    """All requests as one; it has their parameters if these are equal, and no id."""
    rows = sum(run.rows)
    inputs = {name: source.array[:rows] for name, source in sources.items()}
    parameters = {request.context.parameters for request in requests}
    common = parameters.pop() if len(parameters) == 1 else ""
    return RequestInputs(inputs, CallContext("", common), run.wanted)


def _cut(rows: Sequence[int], answer: Answer) -> list[Answer]:
    """The outputs of a stacked request as those of the requests in it.

    Raises:
        ServeError: the model failed it.
        ValueError: an output does not have the rows of the batch first.
    """
    if isinstance(answer, ServeError):
        raise answer
    for name, (_, array) in answer.outputs.items():
        if array.shape[:1] != (sum(rows),):
            raise ValueError(
                f"output '{name}' has shape {list(array.shape)}, expected {sum(rows)} rows first: "
                f"[batching] stack = true passes the whole batch as one request"
            )
    return [
        ModelResponse(
            {
                name: TypedArray(datatype, array[end - count : end])
                for name, (datatype, array) in answer.outputs.items()
            },
            answer.parameters,
        )
        for end, count in zip(accumulate(rows), rows, strict=True)
    ]


class Iteration:
    """A batch that is executed together with others of its model, until its requests are done."""

    def __init__(
        self,
        run: RunBatch,
        runner: PythonRunner,
        batched: bool,
        intake: BatchInputs,
        inbox: Inbox,
        streams: ResponseStreams,
        calls: BatchCalls,
    ) -> None:
        """Begin it.

        Raises:
            Exception: its inputs are not as its heads say.
        """
        self.run, self.calls, self.executed = run, calls, False
        self._inbox, self._intake, self._streams = inbox, intake, streams
        self._batched, self._began_s = batched, perf_counter()
        staged = intake.sources(run, batched) if run.staged else {}
        given = _cut_inputs(run, staged, batched) if staged else intake.by_request(run, batched)
        requests = [_request(*one, streams) for one in zip(_heads(run), given, strict=True)]
        self._staged, self._gathered_s = staged, perf_counter()
        self.look = requests[0].cancelled
        self.open = runner.begin(requests, calls.begin)

    def result(self) -> BatchResult:
        """Its answer, once it is over.

        Raises:
            OutputTooLargeError, MemoryError: no room for its outputs.
        """
        self.calls.end()
        times_s, blocks = (self._began_s, self._gathered_s), self._inbox.blocks
        try:
            return _result(
                self.run, self._batched, self.open.answers, blocks, self._streams, times_s
            )
        finally:
            self._intake.release(self._staged)


_ALIGN_BYTES = 64


def place(
    answers: Sequence[Answer], blocks: OutputBlocks, take: Callable[[int], int]
) -> tuple[tuple[RequestResult, ...], int | None]:
    """Copy all outputs to one block that ``take`` gives; the results refer to it.

    Raises:
        OutputTooLargeError, MemoryError: as ``OutputBlocks.take``.
    """
    outputs = [
        {}
        if isinstance(answer, ServeError)
        else {name: output_bytes(value) for name, value in answer.outputs.items()}
        for answer in answers
    ]
    total = sum(_room(len(data)) for each in outputs for data in each.values())
    block = take(total) if total else None
    arena, at = blocks.arena, block or 0
    results = []
    for answer, own in zip(answers, outputs, strict=True):
        if isinstance(answer, ServeError):
            results.append(error_result(answer))
            continue
        tensors = []
        for name, data in own.items():
            datatype, array = answer.outputs[name]
            arena.memory[at : at + len(data)] = data
            span = Span(arena.number, at, len(data))
            tensors.append(Tensor(name, datatype, array.shape, span))
            at += _room(len(data))
        results.append(RequestResult(tuple(tensors), parameters=answer.parameters))
    return tuple(results), block


def _room(nbytes: int) -> int:
    return -(-nbytes // _ALIGN_BYTES) * _ALIGN_BYTES


#: Responses to one request that may wait for its client to read them.
_WINDOW: Final = 32
#: How long a model lets others run, between its responses, that wait for one.
TURN_S: Final = 0.001


class ResponseStreams:
    """The responses to the requests of one batch, by request id.

    A client that reads slowly holds up its model, for as long as a batch waits for memory; then its
    stream fails. Meanwhile others run: the client may be a model in this worker. Any thread of the
    model may respond.
    """

    def __init__(
        self, batch: int, inbox: Inbox, send: Callable[[Responded], None], calls: BatchCalls
    ) -> None:
        self.failed: dict[int, ServeError] = {}
        self._batch = batch
        self._inbox = inbox
        self._send = send
        self._calls = calls
        self._unread: dict[int, list[int]] = {}
        self._sending = Lock()

    def respond(self, request: int, answer: Answer | None, final: bool) -> None:
        """Send a response, ``None`` for one without outputs; wait if too many are not read yet.

        Raises:
            ConnectionError: the main process closed its end.
        """
        inbox, blocks = self._inbox, self._inbox.blocks
        with self._sending:
            if request in self.failed or inbox.cancelled(request):
                return
            try:
                unread = self._make_room(request)
                (result,), block = place(
                    [ModelResponse() if answer is None else answer], blocks, self._take
                )
            except (MemoryError, OutputTooLargeError) as error:
                self.failed[request] = ServeError(Reason.BACKEND, str(error))
                inbox.cancel(request)
                return
            number = blocks.number()
            blocks.hold(number, [] if block is None else [block])
            unread.append(number)
            self._send(Responded(self._batch, request, number, result, final))
            self._let_others_go_on(self._calls.beside)  # the response may be theirs

    def cancelled(self, request: int) -> bool:
        """As ``Inbox.cancelled``; others that have an answer go on."""
        gone = self._inbox.cancelled(request)
        self._let_others_go_on()
        return gone

    def _let_others_go_on(self, soon: bool = False) -> None:
        """Give up the turn for a moment if somebody can use it, or might ``soon``."""
        if soon or self._calls.wanted or self._inbox.holds_answers:
            with self._calls.turn_given_up():
                sleep(TURN_S)

    def _wait(self, frees: int) -> bool:
        with self._calls.turn_given_up():
            return self._inbox.wait_for_memory(frees)

    def _take(self, nbytes: int) -> int:
        """As ``OutputBlocks.take``."""
        blocks = self._inbox.blocks
        frees = blocks.frees
        while (offset := blocks.take_now(nbytes)) is None:
            if not self._wait(frees):
                raise MemoryError(blocks.shortage(nbytes))
            frees = blocks.frees
        return offset

    def _make_room(self, request: int) -> list[int]:
        """The responses to a request that are not read yet, fewer than may be.

        Raises:
            MemoryError: its client reads none.
        """
        blocks = self._inbox.blocks
        while True:
            frees = blocks.frees
            unread = [one for one in self._unread.get(request, ()) if blocks.holds(one)]
            self._unread[request] = unread
            if len(unread) < _WINDOW:
                return unread
            if not self._wait(frees):
                raise MemoryError(
                    f"the stream ends: its client has {len(unread)} responses and reads none"
                )
