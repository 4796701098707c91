"""One batch of a model that takes its requests one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from time import perf_counter

from interlace.core.errors import ServeError
from interlace.core.request import CallContext
from interlace.device.cpu.execution import BatchInputs, InputArray
from interlace.device.cpu.inbox import Inbox
from interlace.device.cpu.model_calls import BatchCalls
from interlace.device.cpu.output_placing import place
from interlace.device.cpu.response_stream import ResponseStreams
from interlace.device.process.wire import BatchResult, RequestHead, RunBatch
from interlace.formats.runner import (
    Answer,
    Array,
    ModelResponse,
    RequestInputs,
    RunsRequests,
    TypedArray,
)


def execute_requests(
    run: RunBatch,
    runner: RunsRequests,
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
    heads = run.heads or (RequestHead(CallContext(), run.wanted),) * len(run.rows)
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
        if failed := streams.failed:
            pairs = zip(heads, answers, strict=True)
            answers = [failed.get(head.request, answer) for head, answer in pairs]
        inferred = perf_counter()
        results, block = place(answers, inbox.blocks, inbox.blocks.take)
    finally:
        intake.release(sources)
    if block is not None:
        inbox.blocks.hold(run.batch, [block])
    ended = perf_counter()
    took_ms = (gathered - started) * 1e3, (inferred - gathered) * 1e3, (ended - inferred) * 1e3
    return BatchResult(run.batch, (), batched, block is not None, *took_ms, results=results)


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
