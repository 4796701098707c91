"""Records a run as its runtime goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import nan

from interlace.core.messages import (
    Command,
    CreatePartition,
    Event,
    GpuJoined,
    GpuLeft,
    PartitionLost,
    ReleasePartition,
    RequestArrived,
    Run,
    SendReply,
    WakeAt,
    WorkFinished,
)
from interlace.sim.record import Execution, GpuSpan, PartitionSpan, RunRecord, ServedRequest


@dataclass(slots=True)
class Recorder:
    """An observer of a runtime, live or simulated, that keeps what happened.

    Bounded by ``limit`` requests and as many executions; older ones are kept, newer requests
    counted in ``left_out``.
    """

    limit: int = 50_000_000
    served: list[ServedRequest] = field(default_factory=list)
    executions: list[Execution] = field(default_factory=list)
    spans: dict[str, PartitionSpan] = field(default_factory=dict)
    presences: list[GpuSpan] = field(default_factory=list)
    left_out: int = 0
    #: by partition, in order, and when each began: the others when the one before ends
    _running: dict[str, deque[tuple[Run, float]]] = field(default_factory=dict)

    def __call__(self, now_ms: float, event: Event, commands: Sequence[Command]) -> None:
        ended: tuple[Run, float] | None = None
        if type(event) is RequestArrived:
            if not commands:
                return  # queued: most events
        elif type(event) is WorkFinished:
            ended = self._finished(event, now_ms)
        elif isinstance(event, PartitionLost):
            self._end(event.partition, now_ms)
        elif isinstance(event, GpuJoined):
            self.presences.append(GpuSpan(event.gpu.id, now_ms, float("inf")))
        elif isinstance(event, GpuLeft):
            self._left(event.gpu, now_ms)
        for command in commands:
            if type(command) is SendReply:
                self._answered(command, ended, now_ms)
                continue
            if type(command) is WakeAt:
                continue
            match command:
                case Run(partition=partition):
                    self._running.setdefault(partition, deque()).append((command, now_ms))
                case CreatePartition(gpu=gpu, partition=partition, share_pct=share_pct):
                    self.spans[partition] = PartitionSpan(
                        gpu, partition, share_pct, now_ms, float("inf")
                    )
                case _:
                    pass

    def resume(
        self, span: PartitionSpan, run: Run | None = None, started_ms: float = float("nan")
    ) -> None:
        """Enter a partition that stands already, and what it runs: the record begins later."""
        self.spans[span.partition] = span
        if run is not None:
            self._running[span.partition] = deque([(run, started_ms)])

    def record(self, from_ms: float, until_ms: float, gpus: Sequence[str]) -> RunRecord:
        """What was kept, for requests that arrived between the two times.

        ``gpus`` were there from the start.
        """
        served = [one for one in self.served if from_ms <= one.arrived_ms < until_ms]
        spans = tuple(self.spans.values())
        known = {one.gpu for one in self.presences}
        stayed = [GpuSpan(gpu, 0.0, float("inf")) for gpu in gpus if gpu not in known]
        presences = sorted([*stayed, *self.presences], key=lambda one: one.joined_ms)
        names = tuple(dict.fromkeys(one.gpu for one in presences))
        return RunRecord(from_ms, until_ms, names, served, self.executions, spans, presences)

    def _finished(self, event: WorkFinished, now_ms: float) -> tuple[Run, float] | None:
        work = event.work
        if isinstance(work, ReleasePartition):
            self._end(work.partition, now_ms)
        if not isinstance(work, Run):
            return None
        waiting = self._running.get(work.partition)
        if not waiting:
            return None
        began = waiting.popleft()
        if waiting:
            waiting[0] = waiting[0][0], now_ms
        else:
            del self._running[work.partition]
        if len(self.executions) >= self.limit:
            return began
        span = self.spans.get(work.partition)
        share_pct = span.share_pct if span else 100
        batch = work.batch
        self.executions.append(
            Execution(
                work.gpu,
                work.partition,
                share_pct,
                batch.model,
                batch.rows,
                began[1],
                now_ms,
                event.failure is not None,
            )
        )
        return began

    def _answered(self, answer: SendReply, ended: tuple[Run, float] | None, now_ms: float) -> None:
        if len(self.served) >= self.limit:
            self.left_out += 1
            return
        reply = answer.reply
        request = reply.request
        started_ms, rows, partition = nan, 0, ""
        if ended is not None and reply.batch == ended[0].batch.id:
            run, started_ms = ended
            rows, partition = run.batch.rows, run.partition
        self.served.append(
            ServedRequest(
                request.model,
                request.arrived_ms,
                request.deadline_ms,
                now_ms,
                started_ms,
                reply.outcome,
                request.rows,
                rows,
                partition,
            )
        )

    def _left(self, gpu: str, now_ms: float) -> None:
        for name, span in self.spans.items():
            if span.gpu == gpu:
                self._end(name, now_ms)
        for index, one in enumerate(self.presences):
            if one.gpu == gpu and one.left_ms == float("inf"):
                self.presences[index] = one._replace(left_ms=now_ms)
                return
        self.presences.append(GpuSpan(gpu, 0.0, now_ms))

    def _end(self, partition: str, now_ms: float) -> None:
        span = self.spans.get(partition)
        if span is not None and span.released_ms == float("inf"):
            self.spans[partition] = span._replace(released_ms=now_ms)
