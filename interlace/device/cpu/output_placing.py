"""Outputs of single requests, copied to a worker's arena."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from interlace.core.errors import ServeError
from interlace.core.tensor import Span, Tensor
from interlace.device.cpu.execution import output_bytes
from interlace.device.process.batch_frames import error_result
from interlace.device.process.output_arena import OutputBlocks
from interlace.device.process.wire import RequestResult
from interlace.formats.runner import Answer

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
