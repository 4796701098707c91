"""Errors for requests that are not served: the SLO, how late it would be, when to retry."""

from __future__ import annotations

from math import inf

from msgspec import structs

from interlace.core.deployment_key import model_name
from interlace.core.errors import Reason, ServeError
from interlace.core.request import Request
from interlace.engine.state import DeployedModel
from interlace.policy.decision import Refusal


def unknown(request: Request) -> ServeError:
    """The deployment is not (or no longer) known to the engine."""
    return ServeError(Reason.UNKNOWN_MODEL, f"deployment {request.model} is not served")


def not_served(request: Request, deployed: DeployedModel | None) -> ServeError | None:
    """The error if no request is accepted for this model now."""
    if deployed is None or deployed.leaving:
        return unknown(request)
    return None if deployed.quarantine_reason is None else quarantined(deployed, request.arrived_ms)


def quarantined(deployed: DeployedModel, now_ms: float) -> ServeError:
    """The model is not served for a while: it failed too often, or has no place."""
    left_ms = None if deployed.retry_at_ms == inf else max(deployed.retry_at_ms - now_ms, 1.0)
    return ServeError(
        Reason.QUARANTINED,
        f"model '{model_name(deployed.demand.model)}' is quarantined: {deployed.quarantine_reason}",
        retry_after_ms=left_ms,
    )


def full(request: Request, deployed: DeployedModel) -> ServeError:
    """The queue is full."""
    waiting = deployed.waiting
    batch_ms = deployed.estimator.latency_ms(1, 100)
    return ServeError(
        Reason.OVERLOADED,
        f"Exceeds maximum queue size: {waiting} requests wait for {_name(request)}, the limit is "
        f"{deployed.queue.limit}",
        retry_after_ms=max(1.0, batch_ms),
    )


def late(request: Request, refusal: Refusal) -> ServeError:
    """Admission predicts that the deadline would be missed."""
    request = structs.replace(request, model=refusal.model or request.model)
    slo_ms = request.deadline_ms - request.arrived_ms
    if refusal.full:
        return ServeError(
            Reason.OVERLOADED,
            f"the queue of {_name(request)} is full",
            retry_after_ms=refusal.retry_after_ms,
        )
    text = (
        f"{_name(request)} would answer {refusal.late_ms:.1f} ms after the deadline of "
        f"{slo_ms:.1f} ms"
    )
    if refusal.cold_ms > 0:
        text = (
            f"{_name(request)} is cold: its weights are there in {refusal.cold_ms:.1f} ms, so it "
            f"would answer {refusal.late_ms:.1f} ms after the deadline of {slo_ms:.1f} ms"
        )
    elif refusal.late_ms <= 0:
        text = f"accepting this request to {_name(request)} would make an accepted one late"
    if refusal.retry_after_ms is None:
        text += "; even an idle server could not make it: ask with a larger slo_ms"
    else:
        text += f"; retry in {refusal.retry_after_ms:.0f} ms"
    reason = Reason.DEADLINE if refusal.retry_after_ms is None else Reason.OVERLOADED
    return ServeError(
        reason, text, retry_after_ms=refusal.retry_after_ms, late_ms=max(refusal.late_ms, 0.0)
    )


def expired(request: Request, end_ms: float, now_ms: float) -> ServeError:
    """Admitted, but it can no longer meet its deadline from the queue: it would end then."""
    slo_ms = request.deadline_ms - request.arrived_ms
    late_ms = end_ms - request.deadline_ms
    return ServeError(
        Reason.DEADLINE,
        f"Request timeout expired: {_name(request)} waited {now_ms - request.arrived_ms:.1f} ms "
        f"of its {slo_ms:.1f} ms and would end {late_ms:.1f} ms late",
        late_ms=late_ms,
    )


def given_up(request: Request, now_ms: float) -> ServeError:
    """Admitted, but dropped so that the requests behind it are in time."""
    slo_ms = request.deadline_ms - request.arrived_ms
    return ServeError(
        Reason.DEADLINE,
        f"Request timeout expired: {_name(request)} waited {now_ms - request.arrived_ms:.1f} ms "
        f"of its {slo_ms:.1f} ms and was given up so that those behind it are in time",
    )


def overdue(request: Request, now_ms: float) -> ServeError:
    """Admitted, but its batch takes far longer than predicted."""
    slo_ms, since_ms = request.deadline_ms - request.arrived_ms, now_ms - request.arrived_ms
    return ServeError(
        Reason.DEADLINE,
        f"Request timeout expired: {_name(request)} had {slo_ms:.1f} ms and runs after "
        f"{since_ms:.1f} ms still: its batch takes far longer than predicted",
        late_ms=now_ms - request.deadline_ms,
    )


def _name(request: Request) -> str:
    return f"model '{model_name(request.model)}'"
