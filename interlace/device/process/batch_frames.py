"""Work as frames and answers as ends of work: requests to columns, outputs to tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from interlace.core.errors import Reason, ServeError
from interlace.core.messages import Failure, Run, Work, WorkFinished
from interlace.core.request import Batch, CallContext, Request, Timing
from interlace.core.tensor import Span, Tensor
from interlace.device.base import Done
from interlace.device.process.output_arena import OutputArena
from interlace.device.process.wire import (
    BatchOutput,
    BatchResult,
    Column,
    Failed,
    Loaded,
    RequestHead,
    RequestResult,
    RunBatch,
)


def run_frame(
    batch: Batch, freed: tuple[int, ...], window: tuple[Column, ...] | None = None
) -> RunBatch:
    """The frame that executes a batch; ``freed`` are earlier batches delivered since.

    ``window`` is where the rows lie together, if they do; else they are gathered.

    Raises:
        ValueError: the batch is empty, or its requests name different inputs.
    """
    requests = batch.requests
    if not requests:
        raise ValueError(f"batch {batch.id} of {batch.model} holds no request")
    if len(requests) == 1 and window is None:
        return _run_one(batch, requests[0], freed)
    first = requests[0].inputs
    columns = window or tuple([_column(one, at, requests) for at, one in enumerate(first)])
    return RunBatch(
        batch.id,
        batch.model,
        tuple([request.rows for request in requests]),
        columns,
        _wanted_outputs(requests),
        freed,
        window is not None,
        batch.padded_rows,
        _heads(requests),
    )


def request_outputs(batch: Batch, ran: BatchResult) -> tuple[tuple[Tensor, ...], ...]:
    """Each request's tensors, in the order the request names them (the model's order for all)."""
    if ran.results:
        return tuple([result.outputs for result in ran.results])
    if not ran.outputs:
        return ((),) * len(batch.requests)
    columns = [_tensors(output, batch.requests, ran.batched) for output in ran.outputs]
    rows = zip(*columns, strict=True)
    return tuple(
        [
            tensors if not request.outputs else _chosen(tensors, request.outputs)
            for request, tensors in zip(batch.requests, rows, strict=True)
        ]
    )


def request_errors(ran: BatchResult) -> tuple[ServeError | None, ...]:
    """Why the model refused each request; empty if it refused none."""
    if not any(result.reason for result in ran.results):
        return ()
    return tuple([error_of(result) for result in ran.results])


def error_of(result: RequestResult) -> ServeError | None:
    """Why the model refused a request; ``None`` if it did not.

    Its answer is final, whatever it says: it would be the same on another node.
    """
    if not result.reason:
        return None
    return ServeError(Reason(result.reason), result.detail, retry_after_ms=inf)


def error_result(error: ServeError) -> RequestResult:
    """A result that is an error."""
    return RequestResult((), error.reason.value, error.detail)


def failure_of(answer: object, spared: bool = True) -> Failure | None:
    """Why work failed; ``None`` if it did not.

    A worker killed from outside is blamed on what it ran unless that is ``spared``.
    """
    if isinstance(answer, Failure):
        return answer if spared else replace(answer, innocent=False)
    if isinstance(answer, Failed):
        return Failure(answer.detail, bad_input=answer.bad_input)
    return None


def finish(work: Work, done: Done, answer: object, spared: bool = True) -> None:
    """End work whose answer says no more than whether it is done, and what a load holds."""
    resident_bytes = answer.resident_bytes if isinstance(answer, Loaded) else 0
    done(WorkFinished(work, failure=failure_of(answer, spared), resident_bytes=resident_bytes))


def finish_run(
    work: Run, outputs: OutputArena, line: str, done: Done, spared: bool, answer: object
) -> None:
    """End a batch of a line, whose ``outputs`` are kept until they are freed."""
    outputs.feed(line)
    if not isinstance(answer, BatchResult):
        done(WorkFinished(work, failure=failure_of(answer, spared)))
        return
    batch = work.batch
    if answer.held:
        outputs.hold(batch.id)
    outputs_of, errors = request_outputs(batch, answer), request_errors(answer)
    said = tuple([result.parameters for result in answer.results])
    timing = _timing(batch, answer)
    done(WorkFinished(work, outputs_of, None, timing, errors=errors, parameters=said))


def _timing(batch: Batch, ran: BatchResult) -> Timing:
    """The worker's phases; the queue time is not the worker's to know."""
    times_ms = 0.0, ran.input_ms, ran.infer_ms, ran.output_ms
    return Timing(*times_ms, batch.rows, ran.began_ns, ran.ended_ns, ran.executed_rows)


def _run_one(batch: Batch, request: Request, freed: tuple[int, ...]) -> RunBatch:
    columns = []
    for name, datatype, shape, (arena, offset, nbytes) in request.inputs:
        columns.append(Column(name, datatype, shape, (arena,), (offset,), (nbytes,)))
    rows = (request.rows,)
    padded = batch.padded_rows
    return RunBatch(
        batch.id,
        batch.model,
        rows,
        tuple(columns),
        request.outputs,
        freed,
        False,
        padded,
        _heads((request,)),
    )


def _heads(requests: Sequence[Request]) -> tuple[RequestHead, ...]:
    if requests[0].context is None:
        return ()
    return tuple(
        [
            RequestHead(request.context or CallContext(), request.outputs, request.id)
            for request in requests
        ]
    )


def _column(tensor: Tensor, at: int, requests: Sequence[Request]) -> Column:
    name = tensor.name
    try:
        spans = [
            same.span if (same := request.inputs[at]).name == name else _span(request, name)
            for request in requests
        ]
    except IndexError:
        spans = [_span(request, name) for request in requests]
    arenas, offsets, sizes = zip(*spans, strict=True)
    return Column(name, tensor.datatype, tensor.shape, arenas, offsets, sizes)


def _span(request: Request, name: str) -> Span:
    for tensor in request.inputs:
        if tensor.name == name:
            return tensor.span
    raise ValueError(
        f"request {request.id} has no input '{name}', which others of its batch have; "
        f"only requests of equal shape can share a batch"
    )


def _wanted_outputs(requests: Sequence[Request]) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for request in requests:
        if not request.outputs:
            return ()
        names.update(dict.fromkeys(request.outputs))
    return tuple(names)


def _tensors(output: BatchOutput, requests: Sequence[Request], batched: bool) -> list[Tensor]:
    name, datatype, arena, at = output.name, output.datatype, output.arena, output.offset
    if not batched:
        nbytes = output.sizes[0] if output.sizes else output.row_bytes
        return [Tensor(name, datatype, output.dims, Span(arena, at, nbytes))]
    found = []
    dims, row_bytes, sizes = output.dims[1:], output.row_bytes, output.sizes
    one = (1, *dims)
    for place, request in enumerate(requests):
        rows = request.rows
        nbytes = sizes[place] if sizes else rows * row_bytes
        shape = one if rows == 1 else (rows, *dims)
        found.append(Tensor(name, datatype, shape, Span(arena, at, nbytes)))
        at += nbytes
    return found


def _chosen(tensors: Sequence[Tensor], names: Sequence[str]) -> tuple[Tensor, ...]:
    named = {tensor.name: tensor for tensor in tensors}
    return tuple([named[name] for name in names if name in named])
