"""The models that contend for turns in a partition, and the batches that sustain their rates."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from math import inf
from typing import Final, NamedTuple

from interlace.core.plan import Slot
from interlace.engine.live_partition import LivePartition, ServiceTags
from interlace.engine.rate_tracker import RateTracker
from interlace.engine.state import DeployedModel, EngineState


class AffineCost(NamedTuple):
    """One model's part in a partition: L(b) = ``fixed_ms`` + b * ``row_ms``, and its rate there."""

    fixed_ms: float
    row_ms: float
    rows_per_s: float


def line(single_ms: float, batch: int, batch_ms: float) -> tuple[float, float]:
    """Fixed and row cost of the line through L(1) and L(``batch``), in ms; both at least 0."""
    if batch <= 1:
        return single_ms, 0.0
    row_ms = max(0.0, (batch_ms - single_ms) / (batch - 1))
    return max(0.0, single_ms - row_ms), row_ms


def round_ms(costs: Iterable[AffineCost]) -> float:
    """The shortest round that keeps up: in it every model runs once, with what arrived in a round.

    C = sum(fixed + rate * C * row), so C = sum(fixed) / (1 - sum(rate * row)); infinite where the
    rows alone take all the time. A model's batch in it, rate * C, is the *sustaining batch*: with
    smaller ones the partition falls behind, with larger ones requests wait for nothing.
    """
    fixed_ms, busy = 0.0, 0.0
    for one in costs:
        fixed_ms += one.fixed_ms
        busy += one.rows_per_s / 1000.0 * one.row_ms
    return fixed_ms / (1.0 - busy) if busy < 1.0 else inf


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


def update_sustaining_batches(
    state: EngineState, rates: RateTracker, models: Collection[str] | None = None
) -> None:
    """Compute parts and batches of every partition, or of those with a turn of these ``models``."""
    planned_rows_per_s = _planned_rows_per_s(state)
    for live in state.partitions.values():
        if models is not None and live.slots and all(s.model not in models for s in live.slots):
            continue
        live.parts = {
            slot.model: _part(slot, state.models[slot.model], planned_rows_per_s[slot.model])
            for slot in live.slots
            if not slot.guest and slot.model in state.models
        }
        costs = {model: _cost(state.models[model], live, rates) for model in live.parts}
        cycle_ms = round_ms(costs.values())
        live.sustaining_rows = {  # nothing arrives of some models, however long a round is
            model: one.rows_per_s / 1000.0 * cycle_ms if one.rows_per_s else 0.0
            for model, one in costs.items()
        }


def _cost(deployed: DeployedModel, live: LivePartition, rates: RateTracker) -> AffineCost:
    model, batch = deployed.demand.model, deployed.demand.max_batch
    single_ms = deployed.estimator.latency_ms(1, live.share_pct)
    fixed_ms, row_ms = line(single_ms, batch, deployed.estimator.latency_ms(batch, live.share_pct))
    rows_per_s = rates.rows_per_s(model) or deployed.demand.rows_per_s
    return AffineCost(fixed_ms, row_ms, rows_per_s * live.parts[model])


def _planned_rows_per_s(state: EngineState) -> dict[str, float]:
    """What is planned for each model in all of its hosts."""
    planned = dict.fromkeys(state.models, 0.0)
    for live in state.partitions.values():
        for slot in live.slots if live.accepting else ():
            if not slot.guest and slot.model in planned:
                planned[slot.model] += slot.rows_per_s
    return planned


def _part(slot: Slot, deployed: DeployedModel, planned_rows_per_s: float) -> float:
    """The part of a model's rate that is a slot's; even where nothing is planned."""
    if planned_rows_per_s <= 0.0:
        return 1.0 / max(1, len(deployed.hosts))
    return slot.rows_per_s / planned_rows_per_s
