"""Each partition's parts of rates and sustaining batches, kept in it for dispatchers."""

from __future__ import annotations

from collections.abc import Collection

from interlace.core.plan import Slot
from interlace.engine.arrival_rates import ArrivalRates
from interlace.engine.live_partition import LivePartition
from interlace.engine.state import DeployedModel, EngineState
from interlace.perf.service_round import AffineCost, line, round_ms


def update_sustaining_batches(
    state: EngineState, rates: ArrivalRates, models: Collection[str] | None = None
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
        live.sustaining_rows = {m: one.rows_per_s / 1000.0 * cycle_ms for m, one in costs.items()}


def _cost(deployed: DeployedModel, live: LivePartition, rates: ArrivalRates) -> AffineCost:
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
