"""One batch of a model that takes its requests one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from time import perf_counter

from interlace.core.errors import ServeError
from interlace.core.request import CallContext
from interlace.core.tensor import Span, Tensor
from interlace.device.cpu.execution import BatchInputs, InputArray, output_bytes
from interlace.device.cpu.model_calls import BatchCalls
from interlace.device.process.output_arena import OutputBlocks
from interlace.device.process.wire import BatchResult, RequestHead, RequestResult, RunBatch
from interlace.formats.runner import RequestInputs, RunsRequests, TypedArray

_ALIGN_BYTES = 64
Answer = Mapping[str, TypedArray] | ServeError


def execute_requests(
    run: RunBatch,
    runner: RunsRequests,
    batched: bool,
    intake: BatchInputs,
    blocks: OutputBlocks,
    calls: BatchCalls,
) -> BatchResult:
    """Run a batch to its answer; requests may have outputs of different shapes, or none.

    Its code may make ``calls`` of other models.

    Raises:
        Exception: whatever the model raises; nothing stays allocated then.
    """
    started = perf_counter()
    sources = intake.sources(run, batched)
    try:
        requests = _requests(run, sources, batched)
        gathered = perf_counter()
        try:
            if runner.stacked and len(requests) > 1:
                (answer,) = runner.run_requests([_stacked(run, requests, sources)], calls.begin)
                answers = _cut(run.rows, answer)
            else:
                answers = runner.run_requests(requests, calls.begin)
        finally:
            calls.end()
        inferred = perf_counter()
        results, block = _place(answers, blocks)
    finally:
        intake.release(sources)
    if block is not None:
        blocks.hold(run.batch, [block])
    return BatchResult(
        run.batch,
        (),
        batched,
        block is not None,
        (gathered - started) * 1e3,
        (inferred - gathered) * 1e3,
        (perf_counter() - inferred) * 1e3,
        results=results,
    )


def _requests(
    run: RunBatch, sources: Mapping[str, InputArray], batched: bool
) -> list[RequestInputs]:
    heads = run.heads or (RequestHead(CallContext(), run.wanted),) * len(run.rows)
    found = []
    for head, end, rows in zip(heads, accumulate(run.rows), run.rows, strict=True):
        part = slice(end - rows, end)
        inputs = {
            name: source.array[part] if batched else source.array
            for name, source in sources.items()
        }
        found.append(RequestInputs(inputs, head.context, head.outputs))
    return found


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
    for name, (_, array) in answer.items():
        if array.shape[:1] != (sum(rows),):
            raise ValueError(
                f"output '{name}' has shape {list(array.shape)}, expected {sum(rows)} rows first: "
                f"[batching] stack = true passes the whole batch as one request"
            )
    return [
        {
            name: TypedArray(datatype, array[end - count : end])
            for name, (datatype, array) in answer.items()
        }
        for end, count in zip(accumulate(rows), rows, strict=True)
    ]


def _place(
    answers: Sequence[Answer], blocks: OutputBlocks
) -> tuple[tuple[RequestResult, ...], int | None]:
    """Copy all outputs to one block; the results refer to it."""
    outputs = [
        {} if isinstance(answer, ServeError) else {n: output_bytes(v) for n, v in answer.items()}
        for answer in answers
    ]
    total = sum(_room(len(data)) for each in outputs for data in each.values())
    block = blocks.take(total) if total else None
    arena, at = blocks.arena, block or 0
    results = []
    for answer, own in zip(answers, outputs, strict=True):
        if isinstance(answer, ServeError):
            results.append(RequestResult((), answer.reason.value, answer.detail))
            continue
        tensors = []
        for name, data in own.items():
            datatype, array = answer[name]
            arena.memory[at : at + len(data)] = data
            span = Span(arena.number, at, len(data))
            tensors.append(Tensor(name, datatype, array.shape, span))
            at += _room(len(data))
        results.append(RequestResult(tuple(tensors)))
    return tuple(results), block


def _room(nbytes: int) -> int:
    return -(-nbytes // _ALIGN_BYTES) * _ALIGN_BYTES
