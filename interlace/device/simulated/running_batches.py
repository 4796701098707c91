"""Batches that run side by side, the copies before and after them, and their limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Protocol

from interlace.core.messages import CopyInputs, Run
from interlace.device.simulated.physics import Contention, FifoResource, Physics, RunningBatch
from interlace.perf.interference import CoRunner, Interference


class Timer(Protocol):
    """The part of a clock that a simulated device needs."""

    def now_ms(self) -> float: ...
    def call_at(self, at_ms: float, call: Callable[[], None]) -> None: ...


class _Running:
    __slots__ = ("busy", "ended", "left_ms", "since_ms", "speed", "turn")

    def __init__(self, busy: RunningBatch, work_ms: float, ended: Callable[[], None]) -> None:
        self.busy = busy
        self.left_ms = work_ms  #: as of ``since_ms``, when its speed was set
        self.since_ms = 0.0
        self.ended = ended
        self.speed = 0.0
        self.turn = 0


class RunningBatches:
    """Executions by partition. When one begins or ends, what is left of the others is retimed.

    Speeds are 1 alone; 1 over the interference factor beside others; times what the contention rule
    says where the shares exceed 100. While the device is stalled nothing moves. Whose speed stays
    is left alone, so that partitions which do not meet cost one timer a batch.
    """

    def __init__(
        self, timer: Timer, interference: Interference | None, contention: Contention
    ) -> None:
        self._timer = timer
        self._interference = interference
        self._contention = contention
        self._running: dict[str, _Running] = {}
        self._shares_pct = 0
        self._stalled_until_ms = float("-inf")
        self._stalled = False
        #: some speed may differ from 1
        self._mixed = interference is not None

    def begin(
        self, partition: str, busy: RunningBatch, work_ms: float, ended: Callable[[], None]
    ) -> None:
        """Run work that takes ``work_ms`` alone; ``ended`` is called when it is done."""
        one = self._running[partition] = _Running(busy, work_ms, ended)
        self._shares_pct += busy.share_pct
        if self._mixed or self._shares_pct > 100:
            self._retime()
        else:
            self._set(partition, one, 1.0)

    def drop(self, partition: str) -> None:
        """Forget what runs there: its process died."""
        one = self._running.pop(partition, None)
        if one is not None:
            self._left(one)

    def clear(self) -> None:
        self._running.clear()
        self._shares_pct = 0

    def stall(self, for_ms: float) -> None:
        """Nothing moves for that long."""
        self._stalled_until_ms = max(self._stalled_until_ms, self._timer.now_ms() + for_ms)
        self._timer.call_at(self._stalled_until_ms, self._resume)
        self._stalled = True
        self._retime()

    def _resume(self) -> None:
        if self._stalled and self._timer.now_ms() >= self._stalled_until_ms:
            self._stalled = False
            self._retime()

    def _left(self, one: _Running) -> None:
        self._shares_pct -= one.busy.share_pct
        if self._mixed:
            self._retime()

    def _retime(self) -> None:
        running = list(self._running.items())
        over = self._shares_pct > 100
        self._mixed = over or self._stalled or self._interference is not None
        speeds = self._speeds([one for _, one in running], over)
        for (name, one), speed in zip(running, speeds, strict=True):
            if speed != one.speed:
                self._set(name, one, speed)

    def _speeds(self, running: Sequence[_Running], over: bool) -> Sequence[float]:
        if self._stalled or not running:
            return [0.0] * len(running)
        speeds = self._contention([one.busy for one in running]) if over else [1.0] * len(running)
        if self._interference is None:
            return speeds
        runners = [CoRunner(one.busy.model, one.busy.rows, one.busy.share_pct) for one in running]
        return [
            speed / self._interference(one, runners[:index] + runners[index + 1 :])
            for index, (one, speed) in enumerate(zip(runners, speeds, strict=True))
        ]

    def _set(self, partition: str, one: _Running, speed: float) -> None:
        """Enter the work done at the old speed, and go on at the new one."""
        now_ms = self._timer.now_ms()
        one.left_ms = max(0.0, one.left_ms - (now_ms - one.since_ms) * one.speed)
        one.since_ms, one.speed = now_ms, speed
        one.turn += 1
        if speed > 0.0:
            turn = one.turn
            at_ms = now_ms + one.left_ms / speed
            self._timer.call_at(at_ms, lambda: self._end(partition, one, turn))

    def _end(self, partition: str, one: _Running, turn: int) -> None:
        if one.turn != turn or self._running.get(partition) is not one:
            return  # retimed or dropped meanwhile
        del self._running[partition]
        self._left(one)
        one.ended()


Callback = Callable[[], None]


class CopyEngines:
    """The host thread and the two copy engines of one accelerator.

    A batch's inputs are copied before it begins, unless they lie in the pool already: copies into
    the pool go on beside executions, which is what the pool is for (E2bird Figure 6). A partition's
    next batch waits for the copy out of the one before: copy, compute, copy in series, as
    TF-Serving does (E2bird Figure 3), and as a stream does.
    """

    def __init__(self, timer: Timer, physics: Physics) -> None:
        self._timer = timer
        self._physics = physics
        self._host, self._inward, self._outward = FifoResource(), FifoResource(), FifoResource()
        #: nothing goes before or after an execution
        self.plain = not any((physics.host.launch_ms, physics.host.sync_ms, physics.link))

    def launch(self, then: Callback) -> None:
        """The host launches a batch; ``then`` at once if that takes no time, as in all of these."""
        self._use(self._host, self._physics.host.launch_ms, then)

    def bring(self, run: Run, then: Callback) -> None:
        """Copy a batch's inputs in."""
        self._use(self._inward, self._inputs_ms(run), then)

    def take_out(self, run: Run, then: Callback) -> None:
        """Copy a batch's outputs out."""
        self._use(self._outward, self._outputs_ms(run), then)

    def tell(self, then: Callback) -> None:
        """The host learns that a batch has ended."""
        self._use(self._host, self._physics.host.sync_ms, then)

    def staged_ms(self, stage: CopyInputs) -> float:
        """When a request's inputs lie in the pool."""
        transfer = self._physics.transfers.get(stage.request.model)
        if transfer is None or self._physics.link is None:
            return self._timer.now_ms()
        copy_ms = self._physics.link.copied_ms(transfer.input_bytes * stage.request.rows)
        return self._inward.take(self._timer.now_ms(), copy_ms)

    def _inputs_ms(self, run: Run) -> float:
        link, batch = self._physics.link, run.batch
        transfer = self._physics.transfers.get(batch.model)
        if link is None or transfer is None or batch.slot is not None:
            return 0.0
        return link.gathered_ms(transfer.input_bytes * batch.run_rows, len(batch.requests))

    def _outputs_ms(self, run: Run) -> float:
        link, transfer = self._physics.link, self._physics.transfers.get(run.batch.model)
        if link is None or transfer is None:
            return 0.0
        return link.copied_ms(transfer.output_bytes * run.batch.run_rows)

    def _use(self, station: FifoResource, for_ms: float, then: Callback) -> None:
        """Take a turn at a station now, not ahead of time: others may come first till then."""
        if for_ms <= 0:
            then()
        else:
            self._timer.call_at(station.take(self._timer.now_ms(), for_ms), then)


class RunTimeouts:
    """When what runs in each partition exceeds its limit; ``late`` is called with the partition.

    One call of the timer for all, since few batches come near their limits.
    """

    def __init__(self, timer: Timer, late: Callable[[str], None]) -> None:
        self._timer = timer
        self._late = late
        self._due_ms: dict[str, float] = {}
        self._look_ms = inf

    def begin(self, partition: str, limit_ms: float) -> None:
        """Something began there that may take so long."""
        due_ms = self._due_ms[partition] = self._timer.now_ms() + limit_ms
        self._look_at(due_ms)

    def end(self, partition: str) -> None:
        """Nothing runs there any more."""
        self._due_ms.pop(partition, None)

    def clear(self) -> None:
        self._due_ms.clear()

    def _look_at(self, at_ms: float) -> None:
        if at_ms < self._look_ms:
            self._look_ms = at_ms
            self._timer.call_at(at_ms, lambda: self._look(at_ms))

    def _look(self, at_ms: float) -> None:
        if at_ms != self._look_ms:
            return  # an earlier one was asked for since, and looked after this
        self._look_ms = inf
        for name in [name for name, due_ms in self._due_ms.items() if due_ms <= at_ms]:
            self._late(name)
        self._look_at(min(self._due_ms.values(), default=inf))
