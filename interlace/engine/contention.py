"""Which models lose requests, and which contend for a partition's turns (``policy.fairness``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from interlace.engine.live_partition import LivePartition
from interlace.engine.service_tags import ServiceTags
from interlace.engine.state import DeployedModel, EngineState

#: A model counts as losing requests until so long after the last one that it lost.
LOSING_MS: Final = 1000.0


def record_loss(
    state: EngineState, deployed: DeployedModel | None, rows: int, now_ms: float
) -> None:
    """A request of so many rows of the model was refused, dropped or late."""
    state.lost_request_ms = now_ms
    if deployed is not None:
        deployed.lost_request_ms = now_ms
        deployed.lost_rows += rows


def mark_contending(state: EngineState, gpu: str, now_ms: float) -> None:
    """Before a decision: find the contending models wherever a batch can be taken."""
    calm = now_ms - state.lost_request_ms > LOSING_MS
    for tags, places in state.contests_on.get(gpu, ()):
        if calm and not tags.contending:
            continue
        for live in places:
            if live.takes(now_ms):
                tags.contend(_contending(state, gpu, tags, places, now_ms))
                break


def _contending(
    state: EngineState, gpu: str, tags: ServiceTags, places: Sequence[LivePartition], now_ms: float
) -> set[str]:
    """Models with a turn that lose requests and have a whole batch waiting."""
    return {
        model
        for model, deployed in state.waiting_on.get(gpu, {}).items()
        if now_ms - deployed.lost_request_ms <= LOSING_MS
        and model in tags.planned_rows_per_s
        and any(_has_batch(state, live, model, deployed.queue.rows) for live in places)
    }


def _has_batch(state: EngineState, live: LivePartition, model: str, rows: int) -> bool:
    return any(rows >= slot.batch for _, slot in state.turns_of[live.id].by_model.get(model, ()))
