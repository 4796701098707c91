"""Sequences whose state is in a partition: their requests run there, or fail."""

from __future__ import annotations

from interlace.core.deployment_key import model_name
from interlace.core.errors import Reason, ServeError
from interlace.core.request import Request
from interlace.core.sequence import SequenceStep
from interlace.engine.live_partition import LivePartition
from interlace.engine.state import DeployedModel, EngineState


def owner_of(state: EngineState, request: Request, step: SequenceStep) -> LivePartition | None:
    """The partition that has the state of a sequence; ``None`` if none has."""
    key = request.model, step.id
    live = state.partitions.get(state.owners.get(key, ""))
    return live if live is not None and live.accepting and key in live.sequences else None


def lost_state(state: EngineState, request: Request) -> ServeError | None:
    """Why a request that continues a sequence cannot run; ``None`` if it can."""
    step = request.sequence
    if step is None or step.start or owner_of(state, request, step) is not None:
        return None
    return ServeError(
        Reason.BACKEND,
        f"the state of sequence {step.id} of model '{model_name(request.model)}' is lost: its "
        f"worker ended, or was replaced; begin again with sequence_start",
    )


def take(
    state: EngineState, deployed: DeployedModel, live: LivePartition, limit: int, now_ms: float
) -> tuple[LivePartition, tuple[Request, ...], list[Request]]:
    """The next batch of a model with sequences: where it runs, its requests, and those to fail.

    The most urgent request decides where: in the partition of its sequence, or if that begins in
    the one with the fewest, ``live`` or another. Requests whose partition is busy wait.
    """
    queue = deployed.queue.in_order()
    model = queue[0].model
    free = [host for host in deployed.hosts if _free(host, model, now_ms)] or [live]
    least = min(free, key=lambda host: len(host.sequences))
    place: LivePartition | None = None
    taken: list[Request] = []
    lost: list[Request] = []
    rows = 0
    for request in queue:
        step = request.sequence
        assert step is not None, "requests of one model all have sequences"
        owner = None if step.start else owner_of(state, request, step)
        if owner is None and not step.start:
            lost.append(request)
        elif place is None:
            if _free(owner or least, model, now_ms):
                place = owner or least
                taken.append(request)
                rows = request.rows
        elif (
            (owner is None or owner is place)
            and request.shape == taken[0].shape
            and rows + request.rows <= limit
        ):
            taken.append(request)
            rows += request.rows
    for request in (*taken, *lost):
        deployed.queue.remove(request.id)
    for request in taken:
        _settle(state, place or live, request)
    return place or live, tuple(taken), lost


def _free(live: LivePartition, model: str, now_ms: float) -> bool:
    return live.takes(now_ms) and live.may_begin(model)


def _settle(state: EngineState, live: LivePartition, request: Request) -> None:
    """The sequence of a request that runs has its state there from now on, or ends."""
    step = request.sequence
    assert step is not None, "requests of one model all have sequences"
    key = request.model, step.id
    forget(state, key)
    if not step.end:
        state.owners[key] = live.id
        live.sequences.add(key)


def forget(state: EngineState, key: tuple[str, int | str]) -> None:
    """A sequence of a deployment has ended."""
    live = state.partitions.get(state.owners.pop(key, ""))
    if live is not None:
        live.sequences.discard(key)
