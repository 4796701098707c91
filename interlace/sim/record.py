"""What happened in a run, as columns: requests, executions, partitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import Struct

from interlace.core.request import Outcome


class AppServed(NamedTuple):
    """One request of an app, from its arrival to its last answer. Times in ms.

    Its outcome is OK or LATE if all stages were answered, EXPIRED if one was not begun for lack of
    time. Else it is the outcome of the stage that failed. ``rows`` are those of all its stages.
    """

    app: str
    arrived_ms: float
    deadline_ms: float
    answered_ms: float
    outcome: Outcome
    rows: int


class ServedRequest(Struct, frozen=True, array_like=True, gc=False):
    """One request from arrival to answer. Times in ms on the run's clock.

    ``started_ms`` and ``partition`` are those of the batch that answered it; NaN and "" if none.
    """

    model: str
    arrived_ms: float
    deadline_ms: float
    answered_ms: float
    started_ms: float
    outcome: Outcome
    rows: int
    batch_rows: int
    partition: str


class Execution(Struct, frozen=True, array_like=True, gc=False):
    """One batch on one partition."""

    gpu: str
    partition: str
    share_pct: int
    model: str
    rows: int
    started_ms: float
    ended_ms: float
    failed: bool


class PartitionSpan(NamedTuple):
    """The life of a partition, from its carving to its release (infinite while it stands)."""

    gpu: str
    partition: str
    share_pct: int
    carved_ms: float
    released_ms: float


class GpuSpan(NamedTuple):
    """An accelerator, from when it joined to when it left (infinite while it is there)."""

    gpu: str
    joined_ms: float
    left_ms: float


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A whole run. ``from_ms`` to ``until_ms`` is when the trace arrived: what is measured."""

    from_ms: float
    until_ms: float
    gpus: tuple[str, ...]
    served: Sequence[ServedRequest]
    executions: Sequence[Execution]
    spans: Sequence[PartitionSpan]
    presences: Sequence[GpuSpan] = ()
    apps: Sequence[AppServed] = ()  #: requests of apps, whose stages are in ``served``
