"""An accelerator made of profiles and a clock: the truth that planners' beliefs are tried on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from interlace.core.hardware import Gpu
from interlace.core.messages import (
    CancelRun,
    CopyInputs,
    Evict,
    Failure,
    Fetch,
    Load,
    PartitionLost,
    PartitionWork,
    ReleasePartition,
    Run,
    Unload,
    Work,
    WorkFinished,
)
from interlace.core.model import Model
from interlace.core.profile import Profiles
from interlace.device.base import Done
from interlace.device.simulated.partition_table import (
    PartitionTable,
    QueuedWork,
    duration_ms,
    result_of,
)
from interlace.device.simulated.physics import Jitter, MechanismCosts, Physics, RunningBatch
from interlace.device.simulated.running_batches import (
    CopyEngines,
    RunningBatches,
    RunTimeouts,
    Timer,
)
from interlace.device.simulated.weights import SimulatedWeights
from interlace.perf.latency import Surface, surface
from interlace.perf.memory import comes_and_goes


class SimulatedDevice:
    """Executes work in virtual time; partitions side by side, work inside one in order.

    With nothing but ``gpu``, ``timer`` and ``truth`` a batch takes its profile's median. A batch is
    launched when the end of the one before is known; where the accelerator has an ``ahead_ms``, it
    is launched when it comes, and begins when the one before has left the partition.
    ``physics`` adds what the papers measure beside: interference, contention, copies, host costs,
    jitter.
    """

    def __init__(
        self,
        gpu: Gpu,
        timer: Timer,
        truth: Profiles,
        costs: MechanismCosts | None = None,
        physics: Physics | None = None,
    ) -> None:
        self.gpu: Gpu = gpu
        self._timer = timer
        self._truth = truth
        self._physics = physics or Physics()
        self._costs = costs or self._physics.costs
        self._surfaces: dict[str, Surface] = {}
        self._holding = PartitionTable(gpu, truth)
        self.weights = SimulatedWeights(gpu, timer, truth)
        self._copying = CopyEngines(timer, self._physics)
        self._progress = RunningBatches(timer, self._physics.interference, self._physics.contention)
        self._queues: dict[str, deque[QueuedWork]] = {}
        self._fresh: set[tuple[str, str]] = set()
        self._faults: dict[type[PartitionWork], deque[Failure]] = {}
        self._limits = RunTimeouts(
            timer, partial(self.kill, detail="killed: its batch took too long")
        )
        seed = f"{self._physics.seed}/{gpu.id}"
        self._jitter = Jitter(truth, seed) if self._physics.jitter else None
        self._lost: Callable[[PartitionLost], None] = lambda lost: None
        self._closed = False

    @property
    def partitions(self) -> dict[str, int]:
        """Partitions that are carved, and their shares."""
        return self._holding.shares

    def register(self, model: Model) -> None:
        """Nothing to read: a simulated model is its profile."""

    def forget(self, key: str) -> None:
        self._surfaces.pop(key, None)

    def free(self, batch: int) -> None:
        """Nothing to reuse: simulated outputs hold no bytes."""

    def cancel_run(self, work: CancelRun) -> None:
        """Nobody's code runs here."""

    def cancel_fetch(self, model: str) -> None:
        self.weights.cancel(model)

    def on_event(self, lost: Callable[[PartitionLost], None]) -> None:
        self._lost = lost

    def do(self, work: Work, done: Done) -> None:
        if not isinstance(work, Run) and isinstance(work, CopyInputs):
            self._stage(work, done)
            return
        if isinstance(work, Evict):
            self.weights.evict(work, done)
            return
        if isinstance(work, Fetch):
            self.weights.fetch(work, done)
            return
        if not (isinstance(work, Run) and self._holding.has(work.partition, work.batch.model)):
            refusal = self._refusal(work)
            if refusal is not None:
                failed = WorkFinished(work, failure=Failure(refusal))
                self._timer.call_at(self._timer.now_ms(), lambda: done(failed))
                return
            self._holding.enter(work)
        entry = QueuedWork(work, done)
        self._queues.setdefault(work.partition, deque()).append(entry)
        if isinstance(work, Run) and self.gpu.ahead_ms:
            self._copying.launch(lambda: self._launched(entry))
        else:
            self._begin_next(work.partition)

    # ------------------------------------------------------------------------------- faults

    def kill(self, partition: str, detail: str = "killed", innocent: bool = False) -> None:
        """Inject the death of a partition: what it holds fails, then it is lost."""
        held = self._queues.pop(partition, deque())
        self._limits.end(partition)
        self._progress.drop(partition)
        # First gone, then told of: work that is sent in answer must find no partition.
        self._holding.forget(partition)
        self.weights.left(partition, detail)
        for one in held:
            one.done(WorkFinished(one.work, failure=Failure(detail, True, innocent)))
        self._lost(PartitionLost(self.gpu.id, partition, detail))

    def fail_next(self, kind: type[PartitionWork], failure: Failure | str) -> None:
        """Make the next piece of work of that kind fail; a fatal failure kills its partition."""
        what = Failure(failure) if isinstance(failure, str) else failure
        self._faults.setdefault(kind, deque()).append(what)

    def stall(self, for_ms: float) -> None:
        """No execution gets on for that long; copies and the host go on."""
        self._progress.stall(for_ms)

    def close(self) -> None:
        """Fail what is unfinished."""
        self._closed = True
        self._progress.clear()
        self._limits.clear()
        held = [entry for queue in self._queues.values() for entry in queue]
        self._queues.clear()
        self._holding.clear()
        self.weights.clear("the device is closed")
        for one in held:
            one.done(WorkFinished(one.work, failure=Failure("the device is closed")))

    # -------------------------------------------------------------------------- one piece of work

    def _refusal(self, work: PartitionWork) -> str | None:
        if self._closed:
            return f"{self.gpu.id} is closed"
        return self._holding.refusal(work)

    def _stage(self, stage: CopyInputs, done: Done) -> None:
        ended_ms = self._copying.staged_ms(stage)

        def end() -> None:
            closed = Failure(f"{self.gpu.id} is closed") if self._closed else None
            done(WorkFinished(stage, failure=closed))

        self._timer.call_at(ended_ms, end)

    def _launched(self, entry: QueuedWork) -> None:
        entry.launched = True
        self._begin_next(entry.work.partition)

    def _begin_next(self, partition: str) -> None:
        """Begin what is first in a partition, unless it runs or is still to be launched."""
        entry = self._head(partition)
        if entry is None or entry.begun:
            return
        work = entry.work
        if isinstance(work, Run) and self.gpu.ahead_ms and not entry.launched:
            return
        entry.begun = True
        if isinstance(work, Run):
            self._run(work, entry)
            return
        if isinstance(work, Load):
            self._fresh.add((work.partition, work.model))
        self._timer.call_at(
            self._timer.now_ms() + duration_ms(work, self._costs, self._truth),
            lambda: self._end(entry),
        )

    def _run(self, run: Run, entry: QueuedWork) -> None:
        """Launch, copy in, execute, copy out; each only where there is something to do."""
        name, batch = run.partition, run.batch
        self._limits.begin(name, run.limit_ms)
        share_pct, rows = self._holding.shares[name], batch.run_rows
        latency = self._surface(batch.model)
        work_ms = latency.latency_ms(rows, share_pct)
        if self._jitter is not None:
            work_ms *= self._jitter.factor(batch.model)
        if self._fresh:
            if (name, batch.model) in self._fresh:
                work_ms += self._costs.hand_over_ms
            self._fresh.discard((name, batch.model))
        busy = RunningBatch(batch.model, rows, share_pct, latency)

        def bring() -> None:
            self._copying.bring(run, lambda: self._execute(run, entry, busy, work_ms))

        if self._copying.plain:
            self._execute(run, entry, busy, work_ms)
        elif entry.launched:
            bring()
        else:
            self._copying.launch(bring)

    def _execute(self, run: Run, entry: QueuedWork, busy: RunningBatch, work_ms: float) -> None:
        if self._head(run.partition) is not entry:
            return  # died or was closed while its inputs were copied
        entry.began_ms = self._timer.now_ms()
        model, cold = run.batch.model, False
        awaited = self.weights.awaited(model)
        if self.gpu.weights_bytes and comes_and_goes(self._truth[model], self.gpu):
            cold, takes_ms = True, self.weights.takes_ms(model, work_ms)
            if takes_ms is None:
                self._end(entry, Failure(f"weights of {model} are not there"))
                return
            work_ms = takes_ms

        def executed() -> None:
            entry.ended_ms = self._timer.now_ms()
            failed = awaited is not None and awaited.failed
            if failed or (cold and self.weights.takes_ms(model, work_ms) is None):
                self._end(entry, Failure(f"weights of {model} did not come"))
            elif self._copying.plain:
                self._end(entry)
            else:
                self._copying.take_out(run, lambda: self._left(entry))

        self._progress.begin(run.partition, busy, work_ms, executed)

    def _left(self, entry: QueuedWork) -> None:
        """A batch has left the partition, where the next one may be waiting; tell its end."""
        if self._head(entry.work.partition) is not entry:
            return  # died or was closed meanwhile
        self._limits.end(entry.work.partition)
        if self.gpu.ahead_ms:
            entry.over = True
            self._begin_next(entry.work.partition)
        self._copying.tell(lambda: self._end(entry))

    def _head(self, partition: str) -> QueuedWork | None:
        """What a partition executes, or would first."""
        for one in self._queues.get(partition, ()):
            if not one.over:
                return one
        return None

    def _end(self, entry: QueuedWork, failure: Failure | None = None) -> None:
        work = entry.work
        queue = self._queues.get(work.partition)
        if not queue or queue[0] is not entry:
            return  # died or was closed meanwhile
        faults = self._faults.get(type(work))
        if faults and faults[0].fatal:
            fault = faults.popleft()
            self.kill(work.partition, fault.detail, fault.innocent)
            return
        queue.popleft()
        if not entry.over:
            self._limits.end(work.partition)
        if failure is None and faults:
            failure = faults.popleft()
        if failure is not None:
            self._holding.undo(work)
            result = WorkFinished(work, failure=failure)
        else:
            units = self._holding.units.get(work.partition, ())
            result = result_of(entry, units, self._truth)
        self._note_weights(work, failure)
        if isinstance(work, ReleasePartition):
            self._holding.forget(work.partition)
            del self._queues[work.partition]
        else:
            self._begin_next(work.partition)
        entry.done(result)

    def _note_weights(self, work: PartitionWork, failure: Failure | None) -> None:
        """What ended may have given weights a host, or taken one."""
        match work:
            case Load(partition=name, model=model) if failure is None:
                self.weights.loaded(model, name)
            case Unload(partition=name, model=model):
                self.weights.unloaded(model, name)
            case ReleasePartition(partition=name):
                self.weights.left(name)

    def _surface(self, model: str) -> Surface:
        if model not in self._surfaces:
            self._surfaces[model] = surface(self._truth[model], "median_ms")
        return self._surfaces[model]


def device_factory(physics: Physics) -> Callable[[Gpu, Timer, Profiles], SimulatedDevice]:
    """Makes devices that all behave so, for a ``Scenario``; jitter differs by accelerator."""
    return lambda gpu, timer, truth: SimulatedDevice(gpu, timer, truth, physics=physics)
