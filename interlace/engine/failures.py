"""Batches that fail or take far longer than predicted: retries, timeouts and their replies."""

from __future__ import annotations

from math import inf
from typing import Final

from interlace.core.errors import Reason, ServeError
from interlace.core.hardware import Trait
from interlace.core.messages import Command, Failure, ReportTimeout, SendReply, TimeoutAt, WakeAt
from interlace.core.request import Batch, Outcome, Reply, Request
from interlace.engine import refusals
from interlace.engine.live_partition import LaunchedBatch, LivePartition
from interlace.engine.state import DeployedModel, EngineState

#: A deadline is checked just after it: at that very moment it is not missed yet.
AFTER_MS: Final = 0.1


def retry_or_fail(
    state: EngineState, batch: Batch, failure: Failure, now_ms: float
) -> list[Command]:
    """Queue a failed batch's requests again, to run alone; reply to those that were retried.

    A request whose values are at fault gets a refusal; if it ran alone, without a retry.
    """
    commands: list[Command] = []
    deployed = state.models.get(batch.model)
    alone = len(batch.requests) == 1 and failure.fatal and not failure.innocent
    deaths = batch.attempt if alone else 0
    known = failure.bad_input and len(batch.requests) == 1
    for request in batch.requests:
        if request.id in state.cancelled:
            state.cancelled.discard(request.id)
            state.retried.discard(request.id)
            commands.append(cancelled_reply(request, deaths))
        elif request.id in state.given_up:
            commands.append(timed_out_reply(state, request, now_ms, deaths))
        elif not known and _may_retry(state, request, deployed, now_ms) and deployed is not None:
            state.retried.add(request.id)
            state.queue_up(deployed, request)
            if deployed.weights:
                state.cold_waiting[request.model] = None
            commands.append(WakeAt(request.deadline_ms + AFTER_MS))
        else:
            state.retried.discard(request.id)
            outcome, reason = Outcome.FAILED, Reason.BACKEND
            if known:
                outcome, reason = Outcome.REFUSED, Reason.BAD_INPUT
            error = ServeError(reason, failure.detail)
            commands.append(SendReply(Reply(request, outcome, error=error, deaths=deaths)))
    return commands


def cancelled_reply(request: Request, deaths: int = 0) -> Command:
    """The reply to a request whose client went away."""
    error = ServeError(Reason.CANCELLED, "the client went away")
    return SendReply(Reply(request, Outcome.CANCELLED, error=error, deaths=deaths))


def timed_out_reply(
    state: EngineState, request: Request, now_ms: float, deaths: int = 0
) -> Command:
    """The reply to a request that timed out while it ran; the device is done with its inputs."""
    state.given_up.discard(request.id)
    state.retried.discard(request.id)
    error = refusals.overdue(request, now_ms)
    return SendReply(Reply(request, Outcome.EXPIRED, error=error, deaths=deaths))


def _may_retry(
    state: EngineState, request: Request, deployed: DeployedModel | None, now_ms: float
) -> bool:
    if deployed is None or deployed.quarantine_reason is not None or deployed.queue.full:
        return False
    if request.streams or request.sequence is not None:
        return False  # its client may have responses of the first try, its model another state
    return request.id not in state.retried and request.deadline_ms > now_ms


#: The least time after its deadline at which a running request is given up.
_MARGIN_MS: Final = 50.0
#: A batch hangs if it takes so many times the prediction, and at least so long.
_TIMES: Final = 20.0
_LEAST_MS: Final = 1_000.0
#: The least where processes start slowly: about as long as starting one takes.
_LEAST_SLOW_MS: Final = 10_000.0


def limit_ms(state: EngineState, live: LivePartition, run_ms: float, asked_ms: float) -> float:
    """How long a batch with a predicted ``run_ms`` may take before its process is ended.

    On cores it may take ``asked_ms``, what its model may and its requests do: a caller with little
    time would else end a process that is well.

    The wait is as long as replacing the process would take, which costs at most twice what an
    oracle would pay (the ski rental rule). A worker on cores starts within about a second, and
    opens its models in the time that they took. A process that holds a GPU starts slowly. Its other
    partitions go on serving while one batch hangs, but end with the process. So the load times of
    all their models count, from profiles: partitions of a process load in turn.
    """
    if Trait.SLOW_START not in state.fleet.gpu(live.gpu).traits:
        return max(_LEAST_MS, live.loads_ms, _TIMES * run_ms, asked_ms)
    there = [one for one in state.partitions.values() if one.gpu == live.gpu]
    models = [model for one in there for model in one.model_states if model in state.models]
    load_ms = sum(state.models[model].profile.load_ms for model in models)
    return max(_LEAST_SLOW_MS + load_ms, _TIMES * run_ms)


def began(state: EngineState, running: LaunchedBatch) -> list[Command]:
    """A batch was launched: ask for a look when the first of its requests would be given up."""
    at_ms = inf
    for request in running.run.batch.requests:
        at_ms = min(at_ms, _give_up_ms(running, request))
    if at_ms >= state.timeout_ms:
        return []
    state.timeout_ms = at_ms
    return [TimeoutAt(at_ms)]


def timed_out(state: EngineState, now_ms: float) -> list[Command]:
    """Report timeouts of requests in running batches, and ask for the next look.

    The batches go on; their results for these requests are dropped.
    """
    commands: list[Command] = []
    state.timeout_ms = inf
    for live in state.partitions.values():
        for running, request in ((one, r) for one in live.batches for r in one.run.batch.requests):
            if request.id in state.given_up or request.id in state.cancelled:
                continue
            at_ms = _give_up_ms(running, request)
            if at_ms > now_ms:
                state.timeout_ms = min(state.timeout_ms, at_ms)
                continue
            state.given_up.add(request.id)
            commands.append(ReportTimeout(request, refusals.overdue(request, now_ms)))
    if state.timeout_ms < inf:
        commands.append(TimeoutAt(state.timeout_ms))
    return commands


def _give_up_ms(running: LaunchedBatch, request: Request) -> float:
    """A margin after its deadline, or after the predicted end of its batch if that is later.

    The margin is the predicted run time, so that ordinary lateness still gets its reply. A stream
    goes on as long as its responses come: its device ends it.
    """
    if request.streams:
        return inf
    run_ms = running.expected_end_ms - running.started_ms
    return max(request.deadline_ms, running.expected_end_ms) + max(_MARGIN_MS, run_ms)
