"""A replayed log as Chrome trace JSON, which Perfetto and chrome://tracing open."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from interlace.cli.replaying.summary import MISSED, steps
from interlace.core.messages import (
    CopyInputs,
    CreatePartition,
    Evict,
    Fetch,
    Load,
    ReleasePartition,
    RequestArrived,
    Run,
    SendReply,
    Unload,
    Work,
    WorkFinished,
)
from interlace.core.request import Batch, Reply
from interlace.core.user_errors import UserError
from interlace.runtime.log.replay import Replay, ReplayStep

#: The process that stands for requests; accelerators follow.
_REQUESTS: Final = 1
_Event = dict[str, Any]


def write_trace(replay: Replay, path: Path, last_s: float, until_s: float) -> int:
    """Write the last seconds of a log before a time as a trace; returns the number of its events.

    Each accelerator is a process with a thread for each partition, on which batches, loads and
    fetches are slices. Each request is an asynchronous slice from arrival to reply, joined by a
    flow to its batch. Times are in microseconds.

    Raises:
        InputError: the log is damaged.
        UserError: the file cannot be written.
    """
    trace = _TraceWriter(last_s * 1000.0)
    for step in steps(replay):
        if step.now_ms > until_s * 1000.0:
            break
        trace.follow(step)
    events = list(trace.events())
    body = {"traceEvents": events, "displayTimeUnit": "ms"}
    try:
        path.write_bytes(msgspec.json.encode(body))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    return len(events)


class _TraceWriter:
    """Collects events of the last ``last_ms``."""

    def __init__(self, last_ms: float) -> None:
        self._last_ms = last_ms
        self._kept: deque[tuple[float, list[_Event]]] = deque()  #: by the time of their end
        self._tracks: dict[tuple[str, str], tuple[int, int]] = {}
        self._processes: dict[str, int] = {"requests": _REQUESTS}
        self._running: dict[str, deque[Run]] = {}  #: batches by partition, the first one runs
        self._began_ms: dict[str, float] = {}  #: when the first one began
        self._open: list[tuple[Work, float]] = []  #: other work, and when it began

    def follow(self, step: ReplayStep) -> None:
        event, now_ms = step.event, step.now_ms
        if isinstance(event, WorkFinished):
            self._ended(event, now_ms)
        for command in step.commands:
            if isinstance(command, Run):
                waiting = self._running.setdefault(command.partition, deque())
                if not waiting:
                    self._began_ms[command.partition] = now_ms
                waiting.append(command)
            elif isinstance(command, SendReply):
                self._replied(command.reply, now_ms)
            elif isinstance(
                command, Load | Unload | CreatePartition | ReleasePartition | Fetch | Evict
            ):
                self._open.append((command, now_ms))
        if isinstance(event, RequestArrived):
            while self._kept and self._kept[0][0] < now_ms - self._last_ms:
                self._kept.popleft()

    def events(self) -> Iterator[_Event]:
        """Names of processes and threads, then events in order of their ends."""
        kept = [one for _, events in self._kept for one in events]
        used = {(one["pid"], one["tid"]) for one in kept}
        for name, pid in self._processes.items():
            if any(pid == own for own, _ in used):
                yield _named("process_name", pid, 0, name)
        for (_, name), (pid, tid) in self._tracks.items():
            if (pid, tid) in used:
                yield _named("thread_name", pid, tid, name)
        yield from kept

    def _ended(self, event: WorkFinished, now_ms: float) -> None:
        work = event.work
        if isinstance(work, CopyInputs):
            return
        if isinstance(work, Run):
            self._batch_ended(work, event, now_ms)
            return
        for place, (begun, began_ms) in enumerate(self._open):
            if begun == work:
                del self._open[place]
                name = f"{_words(type(work).__name__)} {getattr(work, 'model', '')}".rstrip()
                thread = "weights" if isinstance(work, Fetch | Evict) else work.partition
                failed = {"failed": event.failure.detail} if event.failure is not None else {}
                self._slice(work.gpu, thread, name, "plan", (began_ms, now_ms), failed)
                return

    def _batch_ended(self, work: Run, event: WorkFinished, now_ms: float) -> None:
        waiting = self._running.get(work.partition, deque())
        ids = [one.batch.id for one in waiting]
        if work.batch.id not in ids:
            return  # it began before the log
        began_ms = self._began_ms[work.partition]
        del waiting[ids.index(work.batch.id)]
        self._began_ms[work.partition] = now_ms
        batch = work.batch
        args: dict[str, object] = {
            "batch": batch.id,
            "rows": batch.rows,
            "requests": len(batch.requests),
            "slack_ms": round(min(one.deadline_ms for one in batch.requests) - now_ms, 3),
        }
        if event.failure is not None:
            args["failed"] = event.failure.detail
        self._slice(work.gpu, work.partition, batch.model, "batch", (began_ms, now_ms), args)
        self._keep(now_ms, self._flows(batch, work, began_ms))

    def _flows(self, batch: Batch, work: Run, began_ms: float) -> list[_Event]:
        flows: list[_Event] = []
        pid, tid = self._track(work.gpu, work.partition)
        for request in batch.requests:
            own_pid, own_tid = self._track("requests", batch.model)
            same = {"cat": "request", "name": "to its batch", "id": request.id}
            flows.append(
                {"ph": "s", "ts": _us(request.arrived_ms), "pid": own_pid, "tid": own_tid, **same}
            )
            flows.append(
                {"ph": "f", "bp": "e", "ts": _us(began_ms), "pid": pid, "tid": tid, **same}
            )
        return flows

    def _replied(self, reply: Reply, now_ms: float) -> None:
        request = reply.request
        pid, tid = self._track("requests", request.model)
        args: dict[str, object] = {
            "outcome": reply.outcome.value,
            "slack_ms": round(request.deadline_ms - now_ms, 3),
            "queue_ms": round(reply.timing.queue_ms, 3),
        }
        if reply.error is not None:
            args["reason"] = reply.error.detail
        name = (
            f"{request.model} {reply.outcome.value}" if reply.outcome in MISSED else request.model
        )
        same = {"cat": "request", "id": request.id, "pid": pid, "tid": tid, "name": name}
        begin = {"ph": "b", "ts": _us(request.arrived_ms), **same, "args": args}
        self._keep(now_ms, [begin, {"ph": "e", "ts": _us(now_ms), **same}])

    def _slice(
        self,
        gpu: str,
        thread: str,
        name: str,
        category: str,
        times_ms: tuple[float, float],
        args: Mapping[str, object],
    ) -> None:
        pid, tid = self._track(gpu, thread)
        began_ms, ended_ms = times_ms
        event = {
            "ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid,
            "ts": _us(began_ms), "dur": _us(ended_ms - began_ms), "args": args,
        }  # fmt: skip
        self._keep(ended_ms, [event])

    def _keep(self, ended_ms: float, events: list[_Event]) -> None:
        self._kept.append((ended_ms, events))

    def _track(self, process: str, thread: str) -> tuple[int, int]:
        """Integers of a process and a thread: viewers accept no names there."""
        if process not in self._processes:
            self._processes[process] = _REQUESTS + len(self._processes)
        key = (process, thread)
        if key not in self._tracks:
            self._tracks[key] = self._processes[process], len(self._tracks) + 1
        return self._tracks[key]


def _named(what: str, pid: int, tid: int, name: str) -> _Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _us(ms: float) -> float:
    return round(ms * 1000.0, 1)


def _words(name: str) -> str:
    """``CreatePartition`` as "create partition"."""
    return "".join(f" {c.lower()}" if c.isupper() else c for c in name).strip()
