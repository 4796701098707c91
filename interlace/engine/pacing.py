"""The round of each partition at the present rates, kept beside it for dispatchers."""

from __future__ import annotations

from interlace.engine.partitions import Live
from interlace.engine.rates import Rates
from interlace.engine.state import State, Tenant
from interlace.perf.pace import Toll, line, round_ms


def pace(state: State, rates: Rates) -> None:
    """Work out every partition's round anew: after hosts changed, and at every look at the rates.

    A model's rate is spread evenly over its hosts.
    """
    for live in state.lives.values():
        own = [slot.model for slot in live.slots if not slot.guest]
        tenants = [state.tenants[model] for model in own if model in state.tenants]
        live.round_ms = round_ms(_toll(tenant, live, rates) for tenant in tenants)


def _toll(tenant: Tenant, live: Live, rates: Rates) -> Toll:
    batch = tenant.demand.max_batch
    single_ms = tenant.belief.latency_ms(1, live.share_pct)
    fixed_ms, row_ms = line(single_ms, batch, tenant.belief.latency_ms(batch, live.share_pct))
    rate_rps = rates.rate_rps(tenant.demand.model) or tenant.demand.rate_rps
    return Toll(fixed_ms, row_ms, rate_rps / max(1, len(tenant.hosts)))
