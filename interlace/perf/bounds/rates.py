"""The highest rate that a share can serve of a model, all of it in time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import isfinite

from interlace.core.hardware import Gpu
from interlace.core.plan import Demand
from interlace.core.profile import Profile, Profiles


def highest_rps(profile: Profile, demand: Demand, share_pct: int) -> float:
    """max b / L(b, share) over batches with L(b, share) <= SLO, as measured; 0 if there is none.

    Nothing is smoothed: a bound must not be above what was seen. Between two measured batches L is
    a straight line, on which b / L(b) rises or falls throughout, so only measured batches and
    where a line leaves the SLO or the largest batch need be looked at. Beyond the largest measured
    batch nothing is known.
    """
    curve = sorted((b, p.p95_ms) for (b, s), p in profile.points.items() if s == share_pct)
    legal = [b / ms for b, ms in curve if b <= demand.max_batch and ms <= demand.slo_ms]
    for before, after in pairwise(curve):
        legal += _edges(before, after, demand)
    return 1000.0 * max(legal, default=0.0)


def _edges(before: tuple[int, float], after: tuple[int, float], demand: Demand) -> list[float]:
    """b / L(b) where the line between two points reaches the SLO or the largest batch."""
    (low, low_ms), (high, high_ms) = before, after
    found = []
    if low <= demand.max_batch < high:
        ms = low_ms + (high_ms - low_ms) * (demand.max_batch - low) / (high - low)
        if ms <= demand.slo_ms:
            found.append(demand.max_batch / ms)
    if min(low_ms, high_ms) < demand.slo_ms < max(low_ms, high_ms):
        batch = low + (high - low) * (demand.slo_ms - low_ms) / (high_ms - low_ms)
        if batch <= demand.max_batch:
            found.append(batch / demand.slo_ms)
    return found


def servable(
    demand: Sequence[Demand], gpu: Gpu, profiles: Profiles
) -> list[tuple[Demand, dict[int, float]]]:
    """Demands with the highest rate at each share that serves any of them in time."""
    found = []
    for one in demand:
        if one.model not in profiles or not _asks(one):
            continue
        profile = profiles[one.model]
        measured = {share for _, share in profile.points}
        # A share between two measured ones runs as the smaller does, and takes more.
        shares = [share for share in gpu.shares_pct if share in measured]
        rates = {s: rate for s in shares if (rate := highest_rps(profile, one, s)) > 0}
        if rates:
            found.append((one, rates))
    return found


def _asks(one: Demand) -> bool:
    return isfinite(one.rate_rps) and one.rate_rps > 0 and isfinite(one.slo_ms) and one.slo_ms > 0
