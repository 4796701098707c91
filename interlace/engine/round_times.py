"""Each partition's round time at the present rates, kept in it for dispatchers."""

from __future__ import annotations

from interlace.engine.arrival_rates import ArrivalRates
from interlace.engine.live_partition import LivePartition
from interlace.engine.state import DeployedModel, EngineState
from interlace.perf.service_round import AffineCost, line, round_ms


def update_round_times(state: EngineState, rates: ArrivalRates) -> None:
    """Compute the round of every partition; called after each reconciliation.

    A model's rate is spread evenly over its hosts.
    """
    for live in state.partitions.values():
        own = [slot.model for slot in live.slots if not slot.guest]
        models = [state.models[model] for model in own if model in state.models]
        live.round_ms = round_ms(_cost(deployed, live, rates) for deployed in models)


def _cost(deployed: DeployedModel, live: LivePartition, rates: ArrivalRates) -> AffineCost:
    batch = deployed.demand.max_batch
    single_ms = deployed.estimator.latency_ms(1, live.share_pct)
    fixed_ms, row_ms = line(single_ms, batch, deployed.estimator.latency_ms(batch, live.share_pct))
    rows_per_s = rates.rows_per_s(deployed.demand.model) or deployed.demand.rows_per_s
    return AffineCost(fixed_ms, row_ms, rows_per_s / max(1, len(deployed.hosts)))
