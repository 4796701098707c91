"""Outputs of single requests, copied to a worker's arena."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from interlace.core.errors import ServeError
from interlace.core.tensor import Span, Tensor
from interlace.device.cpu.execution import output_bytes
from interlace.device.process.output_arena import OutputBlocks
from interlace.device.process.wire import RequestResult
from interlace.formats.runner import TypedArray

_ALIGN_BYTES = 64
Answer = Mapping[str, TypedArray] | ServeError


def place(
    answers: Sequence[Answer], blocks: OutputBlocks
) -> tuple[tuple[RequestResult, ...], int | None]:
    """Copy all outputs to one block; the results refer to it.

    Raises:
        OutputTooLargeError, MemoryError: as ``OutputBlocks.take``.
    """
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
