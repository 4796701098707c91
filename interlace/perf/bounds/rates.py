"""The highest rate that a share can serve of a model, all of it in time."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from interlace.core.hardware import Gpu
from interlace.core.plan import Demand
from interlace.core.profile import Profiles
from interlace.perf.latency import Surface, surface


def highest_rps(latency: Surface, demand: Demand, share_pct: int) -> float:
    """max b / L(b, share) over batches with L(b, share) <= SLO; 0 if there is none.

    Between measured batches L is a straight line, on which b / L(b) rises or falls throughout: so
    only measured batches and the largest in time need be looked at. Beyond the largest that was
    measured at this share nothing is known.
    """
    if share_pct < min(latency.shares_pct):
        return 0.0
    measured = [batch for batch, _ in latency.at_share(share_pct)]
    most = min(demand.max_batch, measured[-1])
    largest = latency.largest_batch(demand.slo_ms, share_pct, most)
    known = [batch for batch in measured if batch <= largest]
    rates = (latency.throughput_rps(batch, share_pct) for batch in {*known, largest} if batch)
    return max(rates, default=0.0)


def servable(
    demand: Sequence[Demand], gpu: Gpu, profiles: Profiles
) -> list[tuple[Demand, dict[int, float]]]:
    """Demands with the highest rate at each share that serves any of them in time."""
    found = []
    for one in demand:
        if one.model not in profiles or not _asks(one):
            continue
        latency = surface(profiles[one.model])
        # Between measured shares efficiency is at most that of the better neighbour.
        shares = [s for s in gpu.shares_pct if s in latency.shares_pct] or list(gpu.shares_pct)
        rates = {s: rate for s in shares if (rate := highest_rps(latency, one, s)) > 0}
        if rates:
            found.append((one, rates))
    return found


def _asks(one: Demand) -> bool:
    return isfinite(one.rate_rps) and one.rate_rps > 0 and isfinite(one.slo_ms) and one.slo_ms > 0
