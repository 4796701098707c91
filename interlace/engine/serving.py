"""The data half of the engine: admit, queue, form batches, answer."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Final

from interlace.core.errors import Reason, ServeError
from interlace.core.hardware import Gpu
from interlace.core.messages import Answer, Command, Finished, Run, Stage, WakeAt
from interlace.core.request import Batch, Outcome, Reply, Request, Timing
from interlace.engine import fairness, refusals
from interlace.engine.partitions import Life, Live, opening
from interlace.engine.pool import Pool
from interlace.engine.rates import Rates
from interlace.engine.staging import Staging
from interlace.engine.state import State, Tenant
from interlace.engine.view import GpuView
from interlace.policy.base import Drop, Launch, System

#: A deadline is looked at just after it: at the very moment it is not missed yet.
_AFTER_MS: Final = 0.1


class Serving:
    """Requests from arrival to answer. Every accepted request is answered exactly once."""

    def __init__(self, state: State, system: System, rates: Rates) -> None:
        self._state = state
        self._system = system
        self._rates = rates
        self.staging = Staging(state, system.staged)
        self._views: dict[str, GpuView] = {}
        for gpu in state.fleet.gpus:
            self.joined(gpu)

    def joined(self, gpu: Gpu) -> None:
        """There is an accelerator more to dispatch to."""
        self._views[gpu.id] = GpuView(self._state, self._rates, self.staging, gpu)

    def arrive(self, request: Request, now_ms: float) -> list[Command]:
        """Admit or refuse; start at once if something is idle."""
        tenant = self._state.tenants.get(request.model)
        error = refusals.not_served(request, tenant)
        if tenant is None or error is not None:
            return [_refused(request, error or refusals.unknown(request))]
        self._rates.count(request.model, request.rows)
        error = self._judge(request, tenant, now_ms)
        if error is not None:
            fairness.lost(self._state, tenant, now_ms)
            return [_refused(request, error)]
        tenant.queue.push(request)
        stages = self.staging.fill(tenant)
        if stages:
            return [*stages, WakeAt(request.deadline_ms + _AFTER_MS)]
        # In the order of the hosts: a set's order is another in every process.
        places = (*tenant.hosts, *tenant.lenders) if tenant.lenders else tenant.hosts
        open_ = dict.fromkeys(host.gpu for host in places if host.takes(now_ms))
        commands = self.dispatch(open_, now_ms) if open_ else []
        if tenant.queue.head is request:
            commands.append(WakeAt(request.deadline_ms + _AFTER_MS))
        if not open_:
            commands += opening(places)
        return commands

    def _judge(self, request: Request, tenant: Tenant, now_ms: float) -> ServeError | None:
        if tenant.full:
            return refusals.full(request, tenant)
        if not tenant.hosts:
            return None  # loading: it waits in the queue, and its deadline is kept there
        view = self._views[tenant.hosts[0].gpu]
        refusal = self._system.admission(request, view, now_ms)
        if refusal is None:
            return None
        if refusal.retry_after_ms is None:
            tenant.belief.doubt(request.shape, now_ms)
        return refusals.late(request, refusal, now_ms)

    def cancel(self, model: str, request_id: int) -> list[Command]:
        """Take a request out of its queue; one that runs is answered when its batch ends."""
        tenant = self._state.tenants.get(model)
        request = tenant.remove(request_id) if tenant else None
        if request is None:
            if any(_holds(live, request_id) for live in self._state.lives.values()):
                self._state.cancelled.add(request_id)
            return []
        self._state.retried.discard(request_id)
        return [_cancelled(request)]

    def staged(self, finished: Finished, stage: Stage, now_ms: float) -> list[Command]:
        """A request's inputs are on the accelerator: it may be launched."""
        tenant = self.staging.copied(finished, stage)
        return [] if tenant is None else self.dispatch((stage.gpu,), now_ms)

    def finish(self, finished: Finished, run: Run, now_ms: float) -> list[Command]:
        """Answer a batch, or see that what failed is tried once more."""
        live = self._state.lives.get(run.partition)
        batch = run.batch
        running = live.ended(batch.id, now_ms) if live else None
        started_ms = running.started_ms if running else now_ms
        tenant = self._state.tenants.get(batch.model)
        stages: list[Command] = []
        if batch.slot is not None and tenant is not None:
            stages = self.staging.ended(tenant, run.gpu, batch.requests)
        if finished.failure is not None:
            return stages + self._failed(batch, finished.failure.detail, now_ms)
        if live is not None and tenant is not None:
            self._learn(batch, live, now_ms - started_ms, now_ms)
            self._state.charge(live.gpu, batch.model, started_ms, now_ms - started_ms)
        return stages + self._answers(finished, batch, started_ms, now_ms)

    def dispatch(self, gpus: Iterable[str], now_ms: float) -> list[Command]:
        """Ask the dispatcher what starts now on these accelerators."""
        commands: list[Command] = []
        for gpu in gpus:
            commands += self._expire_hopeless(gpu, now_ms)
            fairness.contend(self._state, gpu, now_ms)
            decision = self._system.dispatcher(self._views[gpu], now_ms)
            for drop in decision.drops:
                commands += self._drop(drop, gpu, now_ms)
            for launch in decision.launches:
                commands += self._launch(launch, now_ms)
            if decision.wake_ms is not None:
                commands.append(WakeAt(decision.wake_ms))
            view = self._views[gpu]
            commands += opening(
                live
                for live in view.partitions
                if now_ms < live.opens_ms < inf and view.queued(live)
            )
        return commands

    def expire(self, now_ms: float) -> list[Command]:
        """Answer what missed its deadline in a queue, and ask to be woken for the next."""
        commands: list[Command] = []
        next_ms = float("inf")
        for tenant in self._state.tenants.values():
            if not tenant.queue.rows and not tenant.pools:
                continue  # most, where there are many
            for place in tenant.places:
                for request in place.expired(now_ms):
                    commands.append(self._expired(request, 0.0, now_ms))
                next_ms = min(next_ms, place.next_deadline_ms)
        if next_ms < float("inf"):
            commands.append(WakeAt(next_ms + _AFTER_MS))
        return commands

    def abandon(self, tenant: Tenant, error: ServeError) -> list[Command]:
        """Answer everything queued for a model that is not served any more."""
        queued = [request for place in tenant.places for request in place.clear()]
        self._state.retried.difference_update(request.id for request in queued)
        return [Answer(Reply(request, Outcome.FAILED, error=error)) for request in queued]

    def _drop(self, drop: Drop, gpu: str, now_ms: float) -> list[Command]:
        """Answer requests that the dispatcher gave up for the sake of those behind them."""
        tenant = self._state.tenants[drop.model]
        commands: list[Command] = []
        for request in self.staging.source(tenant, gpu).pop(drop.requests):
            self._state.retried.discard(request.id)
            fairness.lost(self._state, tenant, now_ms)
            error = refusals.given_up(request, now_ms)
            commands.append(Answer(Reply(request, Outcome.EXPIRED, error=error)))
        return commands

    def _launch(self, launch: Launch, now_ms: float) -> list[Command]:
        tenant = self._state.tenants[launch.model]
        live = self._state.lives[launch.partition]
        assert live.life is Life.READY, f"launch into {live.id}, which is {live.life}"
        assert live.takes(now_ms), f"launch into {live.id}, which runs a batch"
        source = self.staging.source(tenant, live.gpu)
        head = source.head
        if head is None:
            return []  # requests of several rows: an earlier launch took more than was asked
        slot: int | None = None
        attempt = 2 if head.id in self._state.retried else 1
        if isinstance(source, Pool):
            slot, requests = source.take(launch.rows)
        else:
            # A request whose batch failed before runs alone: if it is the cause, it fails alone.
            rows = head.rows if attempt > 1 else launch.rows
            requests = source.take(rows)
        rows = sum(request.rows for request in requests)
        self._state.batches += 1
        batch = Batch(
            self._state.batches, launch.model, requests, rows, attempt, slot, launch.padded_rows
        )
        run = Run(live.gpu, live.id, batch)
        run_ms = tenant.belief.latency_ms(batch.run_rows, live.share_pct, head.shape)
        live.give(run, run_ms, now_ms)
        live.starts_ms[launch.model] = now_ms
        live.ledger.began(launch.model, rows)
        self._state.began(live.gpu, launch.model, now_ms)
        return [run]

    def _learn(self, batch: Batch, live: Live, seen_ms: float, now_ms: float) -> None:
        belief = self._state.tenants[batch.model].belief
        belief.learn(batch.run_rows, live.share_pct, batch.requests[0].shape, seen_ms, now_ms)

    def _answers(
        self, finished: Finished, batch: Batch, started_ms: float, now_ms: float
    ) -> list[Command]:
        answers: list[Command] = []
        tenant = self._state.tenants.get(batch.model)
        for request, outputs in zip(batch.requests, finished.outputs, strict=True):
            self._state.retried.discard(request.id)
            if request.id in self._state.cancelled:
                self._state.cancelled.discard(request.id)
                answers.append(_cancelled(request))
                continue
            in_time = now_ms <= request.deadline_ms
            outcome = Outcome.OK if in_time else Outcome.LATE
            if tenant is not None and in_time:
                tenant.caution.kept()
            elif tenant is not None:
                tenant.caution.missed(request.arrived_ms, now_ms)
                fairness.lost(self._state, tenant, now_ms)
            timing = Timing(
                started_ms - request.arrived_ms,
                finished.timing.input_ms,
                finished.timing.infer_ms,
                finished.timing.output_ms,
                batch.rows,
            )
            reply = Reply(request, outcome, outputs, None, timing, batch.id)
            answers.append(Answer(reply))
        return answers

    def _failed(self, batch: Batch, detail: str, now_ms: float) -> list[Command]:
        """Put a failed batch's requests back to run alone, once; answer those that had that."""
        commands: list[Command] = []
        tenant = self._state.tenants.get(batch.model)
        for request in batch.requests:
            if request.id in self._state.cancelled:
                self._state.cancelled.discard(request.id)
                self._state.retried.discard(request.id)
                commands.append(_cancelled(request))
            elif self._may_retry(request, tenant, now_ms) and tenant is not None:
                self._state.retried.add(request.id)
                tenant.queue.push(request)
                commands.append(WakeAt(request.deadline_ms + _AFTER_MS))
            else:
                self._state.retried.discard(request.id)
                error = ServeError(Reason.BACKEND, detail)
                commands.append(Answer(Reply(request, Outcome.FAILED, error=error)))
        return commands

    def _may_retry(self, request: Request, tenant: Tenant | None, now_ms: float) -> bool:
        if tenant is None or tenant.aside is not None or tenant.queue.full:
            return False
        return request.id not in self._state.retried and request.deadline_ms > now_ms

    def _waiting(self, gpu: str) -> list[Tenant]:
        """Tenants with something queued that are hosted on this accelerator."""
        return [
            tenant
            for tenant in self._state.homes.get(gpu, ())
            if tenant.queue.rows or (tenant.pools and tenant.waiting)
        ]

    def _expire_hopeless(self, gpu: str, now_ms: float) -> list[Command]:
        """Drop what cannot make it any more, before a batch is formed."""
        commands: list[Command] = []
        for tenant in self._waiting(gpu):
            source = self.staging.source(tenant, gpu) if tenant.pools else tenant.queue
            head = source.head
            if head is None:
                continue
            fastest_ms = inf
            for share_pct in tenant.shares_pct:
                run_ms = tenant.belief.latency_ms(head.rows, share_pct, head.shape)
                fastest_ms = min(run_ms, fastest_ms)
            soonest_ms = tenant.soonest_ms(now_ms) + fastest_ms
            if source.next_deadline_ms >= soonest_ms:
                continue
            for request in source.expired(soonest_ms):
                commands.append(self._expired(request, fastest_ms, now_ms))
        return commands

    def _expired(self, request: Request, run_ms: float, now_ms: float) -> Command:
        self._state.retried.discard(request.id)
        fairness.lost(self._state, self._state.tenants.get(request.model), now_ms)
        error = refusals.expired(request, run_ms, now_ms)
        return Answer(Reply(request, Outcome.EXPIRED, error=error))


def _refused(request: Request, error: ServeError) -> Command:
    return Answer(Reply(request, Outcome.REFUSED, error=error))


def _cancelled(request: Request) -> Command:
    error = ServeError(Reason.CANCELLED, "the client went away")
    return Answer(Reply(request, Outcome.CANCELLED, error=error))


def _holds(live: Live, request_id: int) -> bool:
    return any(r.id == request_id for one in live.given for r in one.run.batch.requests)
