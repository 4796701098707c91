"""Answers of a GPU's process as finished work."""

from __future__ import annotations

from interlace.core.messages import Evict, Failure, Fetch, Load, Unload, WorkFinished
from interlace.core.request import Batch
from interlace.device.base import Done
from interlace.device.cuda.worker.wire import GpuAnswer
from interlace.device.process.wire import Column, Failed, Loaded


def finish_load(work: Load, done: Done, answer: GpuAnswer | Failure) -> None:
    if isinstance(answer, Loaded):
        done(WorkFinished(work, resident_bytes=answer.resident_bytes))
    else:
        done(WorkFinished(work, failure=failure_of(answer)))


def staged_columns(batch: Batch) -> tuple[Column, ...] | None:
    """The columns of a staged batch, without places: its slot says where the rows are."""
    if batch.slot is None or not batch.requests:
        return None
    return tuple(
        Column(tensor.name, tensor.datatype, tensor.shape, (), (), ())
        for tensor in batch.requests[0].inputs
    )


def finish_move(work: Unload | Fetch | Evict, done: Done, answer: GpuAnswer | Failure) -> None:
    """Work whose answer says no more than that it is done."""
    done(WorkFinished(work, failure=failure_of(answer)))


def failure_of(answer: GpuAnswer | Failure) -> Failure | None:
    if isinstance(answer, Failure):
        return answer
    return Failure(answer.detail) if isinstance(answer, Failed) else None
