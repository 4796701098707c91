"""The data path of the engine: admit, queue, form batches, reply."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Final

from interlace.core.errors import ServeError
from interlace.core.hardware import Gpu
from interlace.core.messages import (
    BatchWaits,
    CancelRun,
    Command,
    CopyInputs,
    Evict,
    Fetch,
    Run,
    SendReply,
    TierChanged,
    WakeAt,
    WorkFinished,
)
from interlace.core.node import ModelOutlook
from interlace.core.request import Batch, Outcome, Reply, Request, Timing
from interlace.engine import failures, refusals, sequences, turns
from interlace.engine.failures import AFTER_MS
from interlace.engine.fetch_scheduler import FetchScheduler
from interlace.engine.input_pool import InputPool
from interlace.engine.input_staging import InputStaging
from interlace.engine.live_partition import LivePartition, PartitionState, next_wake
from interlace.engine.rate_tracker import RateTracker
from interlace.engine.state import DeployedModel, EngineState
from interlace.engine.view import GpuView
from interlace.policy.admission import outlook
from interlace.policy.base import System
from interlace.policy.decision import Drop, Launch

_OK: Final = Outcome.OK  # an enumeration's member is looked up each time
_LATE: Final = Outcome.LATE


class RequestScheduler:
    """Takes requests from arrival to reply. Each accepted request gets exactly one reply."""

    def __init__(self, state: EngineState, system: System, rates: RateTracker) -> None:
        self._state = state
        self._system = system
        self._rates = rates
        self.staging = InputStaging(state, system.staged)
        self.fetching = FetchScheduler(state, system)
        self._views: dict[str, GpuView] = {}
        self._whole_views: dict[str, GpuView] = {}  #: for admission
        for gpu in state.fleet.gpus:
            self.joined(gpu)

    def joined(self, gpu: Gpu) -> None:
        """One more accelerator to dispatch to."""
        self._views[gpu.id] = GpuView(self._state, self._rates, self.staging, gpu)
        self._whole_views[gpu.id] = GpuView(self._state, self._rates, self.staging, gpu, True)

    def arrive(self, request: Request, now_ms: float) -> list[Command]:
        """Admit or refuse a request; launch at once if a partition is idle."""
        deployed = self._state.models.get(request.model)
        if request.part is not None:  # it counts itself from now on, or its app ends
            self._state.expect_stages(request.part.request, ())
        error = refusals.not_served(request, deployed)
        if deployed is None or error is not None:
            return [_refused(request, error or refusals.unknown(request))]
        self._rates.count(request.model, request.rows)
        if deployed.weights:
            self.fetching.arrived(deployed, request, now_ms)
        error = self._judge(request, deployed, now_ms)
        if error is None and request.sequence is not None:
            error = sequences.lost_state(self._state, request)
        if error is None and request.part is not None:
            self._state.expect_stages(request.part.request, request.part.later)
        if error is not None:
            turns.record_loss(self._state, deployed, request.rows, now_ms)
            refused = [_refused(request, error)]
            if deployed.weights and deployed.ready_ms > now_ms:
                refused += self.fetching.refused(deployed, now_ms)
            return refused
        self._state.queue_up(deployed, request)
        if deployed.weights:
            self._state.cold_waiting[request.model] = None
        stages = self.staging.fill(deployed)
        if stages:
            return [*stages, WakeAt(request.deadline_ms + AFTER_MS)]
        # Hosts' order, not a set's, whose order differs between processes: replays must agree.
        places = (*deployed.hosts, *deployed.lenders) if deployed.lenders else deployed.hosts
        open_: dict[str, None] = {}
        for host in places:
            if host.takes_from_ms <= now_ms:
                open_[host.gpu] = None
        if open_:
            commands = self.dispatch(open_, now_ms)
        else:
            commands = self.fetching.step(now_ms) if deployed.weights else []
        if deployed.queue.head is request:
            commands.append(WakeAt(request.deadline_ms + AFTER_MS))
        if not open_:
            commands += next_wake(places)
        return commands

    def count_refused(self, model: str, rows: int, now_ms: float) -> list[Command]:
        """Count rows that were refused before they reached the engine."""
        deployed = self._state.models.get(model)
        if deployed is not None:
            self._rates.count(model, rows)
            turns.record_loss(self._state, deployed, rows, now_ms)
        return []

    def _judge(self, request: Request, deployed: DeployedModel, now_ms: float) -> ServeError | None:
        if deployed.full:
            return refusals.full(request, deployed)
        places = deployed.hosts or deployed.lenders
        if not places:
            return None  # still loading: requests wait, and expire in the queue if need be
        view = self._whole_views[places[0].gpu]
        refusal = self._system.admission(request, view, now_ms)
        if refusal is None:
            return None
        if refusal.retry_after_ms is None:
            late = self._state.models.get(refusal.model, deployed)
            late.estimator.decay(request.shape, now_ms)
        return refusals.late(request, refusal)

    def outlooks(self, now_ms: float) -> dict[str, ModelOutlook]:
        """How soon each model that is hosted, or a guest, would answer its next request."""
        found = {}
        for key, deployed in self._state.models.items():
            places = deployed.hosts or deployed.lenders
            if not places or deployed.leaving or deployed.quarantine_reason is not None:
                continue
            view = self._whole_views[places[0].gpu]
            ready_ms = self.fetching.earliest_ms(deployed, now_ms) if deployed.weights else now_ms
            found[key] = outlook(key, view, ready_ms, now_ms)
        return found

    def cancel(self, model: str, request_id: int, now_ms: float) -> list[Command]:
        """Take a request out of its queue; one that runs is answered when its batch ends."""
        deployed = self._state.models.get(model)
        request = deployed.remove(request_id) if deployed else None
        if request is None and request_id in self._state.given_up:
            return []
        if request is None:
            return self._cancel_running(request_id)
        self._state.retried.discard(request_id)
        return [failures.cancelled_reply(request), *self.fetching.step(now_ms)]

    def _cancel_running(self, request_id: int) -> list[Command]:
        """Note that a client went away; where the model's code can hear of it, it does."""
        for live in self._state.partitions.values():
            for request in (r for one in live.batches for r in one.run.batch.requests):
                if request.id == request_id:
                    self._state.cancelled.add(request_id)
                    hears = request.context is not None
                    return [CancelRun(live.gpu, live.id, request_id)] if hears else []
        return []

    def staged(self, finished: WorkFinished, stage: CopyInputs, now_ms: float) -> list[Command]:
        """A request's inputs are on the accelerator: it may be launched."""
        deployed = self.staging.copied(finished, stage)
        return [] if deployed is None else self.dispatch((stage.gpu,), now_ms)

    def fetched(self, finished: WorkFinished, work: Fetch | Evict, now_ms: float) -> list[Command]:
        """Weights came, or their memory is free: go on with what waited for that."""
        error = self.fetching.finished(finished, work, now_ms)
        deployed = self._state.models.get(work.model)
        commands = self.abandon(deployed, error) if deployed is not None and error else []
        return commands + self.dispatch((work.gpu,), now_ms)

    def waits(self, told: BatchWaits, now_ms: float) -> list[Command]:
        """A batch waits for models that its code calls, perhaps in the same partition."""
        live = self._state.partitions.get(told.partition)
        if live is not None:
            live.waits(told.batch, told.joins, now_ms)
        return self.dispatch((told.gpu,), now_ms)

    def moved(self, told: TierChanged, now_ms: float) -> list[Command]:
        """A host has a model's weights in another tier."""
        self.fetching.moved(told)
        return self.dispatch((told.gpu,), now_ms)

    def finish(self, finished: WorkFinished, run: Run, now_ms: float) -> list[Command]:
        """Reply to a batch's requests, or retry those of a failed batch once."""
        live = self._state.partitions.get(run.partition)
        batch = run.batch
        running = None
        if live is not None:
            running = live.ended(batch.id, now_ms)
            if live.batch is None:
                self._state.running_on[live.gpu].pop(live.id, None)
        started_ms = running.started_ms if running else now_ms
        deployed = self._state.models.get(batch.model)
        cold = False
        if running is not None and deployed is not None and deployed.weights:
            cold = self.fetching.ran(deployed, run)
        stages: list[Command] = []
        if batch.slot is not None and deployed is not None:
            stages = self.staging.ended(deployed, run.gpu, batch.requests)
        if finished.failure is not None:
            return stages + failures.retry_or_fail(self._state, batch, finished.failure, now_ms)
        if live is not None and deployed is not None:
            if not cold:
                self._learn(batch, live, now_ms - started_ms, now_ms)
            self._state.charge(live.gpu, batch.model, started_ms, now_ms - started_ms)
        return stages + self._answers(finished, batch, started_ms, now_ms)

    def dispatch(self, gpus: Iterable[str], now_ms: float) -> list[Command]:
        """Ask the dispatcher what to launch now on these accelerators."""
        commands: list[Command] = []
        if self._state.weights_on:
            gpus = tuple(gpus)
            for gpu in gpus:  # nothing is fetched for those that could not be in time
                commands += self._expire_hopeless(gpu, now_ms)
            commands += self.fetching.step(now_ms)
        for gpu in gpus:
            lost = self._expire_hopeless(gpu, now_ms)
            turns.mark_contending(self._state, gpu, now_ms)
            decision = self._system.dispatcher(self._views[gpu], now_ms)
            for drop in decision.drops:
                lost += self._drop(drop, gpu, now_ms)
            commands += lost
            if lost:  # a fetch that was begun for them is for nobody
                commands += self.fetching.step(now_ms)
            for launch in decision.launches:
                commands += self._launch(launch, now_ms)
            if decision.wake_ms is not None:
                commands.append(WakeAt(decision.wake_ms))
            if self._views[gpu].gpu.ahead_ms:
                commands += self._next_opening(self._views[gpu], now_ms)
        return commands

    def _next_opening(self, view: GpuView, now_ms: float) -> list[Command]:
        """A wake for when the first partition with queued requests can be sent its next batch."""
        busy = (live for live in view.partitions if now_ms < live.takes_from_ms < inf)
        return next_wake(live for live in busy if view.queued(live))

    def expire(self, now_ms: float) -> list[Command]:
        """Reply to requests whose deadline passed in a queue, and ask to be woken for the next."""
        commands: list[Command] = []
        next_ms = inf
        for deployed in self._state.waiting.values():
            if not deployed.queue.rows and not deployed.pools:
                continue
            for place in deployed.queues:
                for request in place.expired(now_ms):
                    commands.append(self._expired(request, now_ms, now_ms))
                next_ms = min(next_ms, place.next_deadline_ms)
        if next_ms < inf:
            commands.append(WakeAt(next_ms + AFTER_MS))
        return commands

    def abandon(self, deployed: DeployedModel, error: ServeError) -> list[Command]:
        """Reply with ``error`` to everything queued for a model that is no longer served."""
        queued = [request for place in deployed.queues for request in place.clear()]
        self._state.retried.difference_update(request.id for request in queued)
        return [SendReply(Reply(request, Outcome.FAILED, error=error)) for request in queued]

    def _drop(self, drop: Drop, gpu: str, now_ms: float) -> list[Command]:
        """Reply to requests that the dispatcher drops so that those behind them are in time."""
        deployed = self._state.models[drop.model]
        commands: list[Command] = []
        for request in self.staging.source(deployed, gpu).pop(drop.requests):
            self._state.retried.discard(request.id)
            deployed.admission_margin.dropped()
            turns.record_loss(self._state, deployed, request.rows, now_ms)
            error = refusals.given_up(request, now_ms)
            commands.append(SendReply(Reply(request, Outcome.EXPIRED, error=error)))
        return commands

    def _launch(self, launch: Launch, now_ms: float) -> list[Command]:
        deployed = self._state.models[launch.model]
        live = self._state.partitions[launch.partition]
        assert live.state is PartitionState.READY, f"launch into {live.id}, which is {live.state}"
        source = self.staging.source(deployed, live.gpu)
        head = source.head
        if head is None:
            return []  # requests of several rows: an earlier launch took more than was asked
        if head.sequence is not None:
            return self._launch_sequences(launch, deployed, live, now_ms)
        busy = not live.takes(now_ms)
        if busy and any(one.run.batch.requests[0].sequence for one in live.batches):
            return []  # a sequence had to run there
        assert not busy, f"launch into {live.id}, which runs a batch"
        slot: int | None = None
        attempt = 2 if head.id in self._state.retried else 1
        if isinstance(source, InputPool):
            slot, requests = source.take(launch.rows)
        else:
            # A request whose batch failed before runs alone: if it is the cause, it fails alone.
            rows = head.rows if attempt > 1 else launch.rows
            room = live.joining_rows(launch.model) if live.waiting else -1
            if room >= 0:
                if head.rows > room:
                    return []
                rows = head.rows  # alone: a batch of several ends with the last of them
            requests = source.take(rows)
        return self._run(launch, deployed, live, requests, attempt, slot, now_ms)

    def _launch_sequences(
        self, launch: Launch, deployed: DeployedModel, live: LivePartition, now_ms: float
    ) -> list[Command]:
        """Launch where the most urgent sequence is; those whose state is lost fail."""
        live, requests, lost = sequences.take(self._state, deployed, live, launch.rows, now_ms)
        commands: list[Command] = []
        for request in lost:
            error = sequences.lost_state(self._state, request)
            commands.append(SendReply(Reply(request, Outcome.FAILED, error=error)))
        if requests:
            commands += self._run(launch, deployed, live, requests, 1, None, now_ms)
        return commands

    def _run(
        self,
        launch: Launch,
        deployed: DeployedModel,
        live: LivePartition,
        requests: tuple[Request, ...],
        attempt: int,
        slot: int | None,
        now_ms: float,
    ) -> list[Command]:
        rows, head = 0, requests[0]
        for request in requests:
            rows += request.rows
        self._state.batch_serial += 1
        batch = Batch(
            self._state.batch_serial,
            launch.model,
            requests,
            rows,
            attempt,
            slot,
            launch.padded_rows,
        )
        run_ms = deployed.estimator.latency_ms(batch.run_rows, live.share_pct, head.shape)
        if deployed.weights:
            self.fetching.runs(deployed, live.gpu, batch.id, now_ms)
        left_ms = max(one.deadline_ms for one in requests) - now_ms
        asked_ms = max(left_ms, deployed.limit_ms)
        limit_ms = failures.limit_ms(self._state, live, run_ms, asked_ms)
        run = Run(live.gpu, live.id, batch, limit_ms)
        running = live.give(run, run_ms, now_ms)
        self._state.running_on[live.gpu][live.id] = live
        live.starts_ms[launch.model] = now_ms
        live.service_tags.began(launch.model, rows)
        deployed.lost_rows = 0
        self._state.began(live.gpu, launch.model, now_ms)
        return [run, *failures.began(self._state, running)]

    def _learn(self, batch: Batch, live: LivePartition, seen_ms: float, now_ms: float) -> None:
        estimator = self._state.models[batch.model].estimator
        estimator.learn(batch.run_rows, live.share_pct, batch.requests[0].shape, seen_ms, now_ms)

    def _answers(
        self, finished: WorkFinished, batch: Batch, started_ms: float, now_ms: float
    ) -> list[Command]:
        answers: list[Command] = []
        deployed = self._state.models.get(batch.model)
        phases = finished.timing
        errors = finished.errors or (None,) * len(batch.requests)
        said = finished.parameters or ("",) * len(batch.requests)
        for request, outputs, error, parameters in zip(
            batch.requests, finished.outputs, errors, said, strict=True
        ):
            self._state.retried.discard(request.id)
            if request.id in self._state.cancelled:
                self._state.cancelled.discard(request.id)
                answers.append(failures.cancelled_reply(request))
                continue
            in_time = now_ms <= request.deadline_ms
            outcome = _OK if in_time else _LATE
            if deployed is not None and in_time:
                deployed.admission_margin.met()
            elif deployed is not None:
                deployed.admission_margin.missed(request.arrived_ms, now_ms)
                turns.record_loss(self._state, deployed, request.rows, now_ms)
            if request.id in self._state.given_up:
                answers.append(failures.timed_out_reply(self._state, request, now_ms))
                continue
            timing = Timing(
                started_ms - request.arrived_ms,
                phases.input_ms,
                phases.infer_ms,
                phases.output_ms,
                batch.rows,
            )
            if error is not None:
                reply = Reply(request, Outcome.FAILED, (), error, timing)
            else:
                reply = Reply(
                    request, outcome, outputs, None, timing, batch.id, parameters=parameters
                )
            answers.append(SendReply(reply))
        return answers

    def _expire_hopeless(self, gpu: str, now_ms: float) -> list[Command]:
        """Drop requests that can no longer meet their deadline, before a batch is formed."""
        commands: list[Command] = []
        for deployed in self._state.waiting_on.get(gpu, {}).values():
            source = self.staging.source(deployed, gpu) if deployed.pools else deployed.queue
            head = source.head
            if head is None or not deployed.hosts:
                continue
            start_ms = deployed.earliest_start_ms(now_ms)
            if deployed.weights:
                start_ms = max(start_ms, self.fetching.earliest_ms(deployed, now_ms))
            soonest_ms, deadline_ms = inf, source.next_deadline_ms
            for share_pct in deployed.shares_pct:
                run_ms = deployed.estimator.latency_ms(head.rows, share_pct, head.shape)
                soonest_ms = min(start_ms + run_ms, soonest_ms)
                if soonest_ms <= deadline_ms:
                    break  # as nearly always, at the first
            else:
                for request in source.expired(soonest_ms):
                    commands.append(self._expired(request, soonest_ms, now_ms))
        return commands

    def _expired(self, request: Request, end_ms: float, now_ms: float) -> Command:
        self._state.retried.discard(request.id)
        deployed = self._state.models.get(request.model)
        if deployed is not None and deployed.hosts:
            deployed.admission_margin.dropped()
        turns.record_loss(self._state, deployed, request.rows, now_ms)
        error = refusals.expired(request, end_ms, now_ms)
        return SendReply(Reply(request, Outcome.EXPIRED, error=error))


def _refused(request: Request, error: ServeError) -> Command:
    return SendReply(Reply(request, Outcome.REFUSED, error=error))
