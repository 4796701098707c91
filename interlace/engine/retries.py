"""Requests of a batch that failed: each is retried once, alone, then answered."""

from __future__ import annotations

from typing import Final

from interlace.core.errors import Reason, ServeError
from interlace.core.messages import Command, Failure, SendReply, WakeAt
from interlace.core.request import Batch, Outcome, Reply, Request
from interlace.engine import refusals
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
            commands.append(cancelled(request, deaths))
        elif request.id in state.given_up:
            commands.append(given_up(state, request, now_ms, deaths))
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


def cancelled(request: Request, deaths: int = 0) -> Command:
    """The reply to a request whose client went away."""
    error = ServeError(Reason.CANCELLED, "the client went away")
    return SendReply(Reply(request, Outcome.CANCELLED, error=error, deaths=deaths))


def given_up(state: EngineState, request: Request, now_ms: float, deaths: int = 0) -> Command:
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
    return request.id not in state.retried and request.deadline_ms > now_ms
