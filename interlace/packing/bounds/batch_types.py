"""Every batch that a model may run: what it costs, and how old its oldest request may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from interlace.core.hardware import Gpu
from interlace.core.plan import Demand
from interlace.core.profile import Profiles
from interlace.packing.bounds.rates import Floats, filled
from interlace.perf.latency import Quantile


@dataclass(frozen=True, slots=True)
class BatchTypes:
    """Latencies of one model's batches, (types, rows from 1); ``worth`` of one type's partition.

    A type is a measured share, at the legal share that is worth least among those which do what it
    does. No batch takes less than ``ms`` says: more rows never less, a larger share never more.
    """

    ms: Floats
    worth: Floats


def batch_types(
    one: Demand, gpu: Gpu, worth: Floats, profiles: Profiles, quantile: Quantile
) -> BatchTypes:
    """The types of ``one``'s batches of up to ``max_batch`` rows where ``worth`` is by legal share.

    Rows beyond the largest measured batch gain nothing, fewer than the smallest take what it takes.
    """
    by_share: dict[int, list[tuple[int, float]]] = {}
    for (batch, share), took_ms in filled(profiles[one.model], quantile):
        by_share.setdefault(share, []).append((batch, took_ms))
    rows = np.arange(1.0, one.max_batch + 1.0)
    shares = sorted(by_share)
    ms: Floats = np.array([_line(sorted(by_share[share]), rows) for share in shares])
    ms = np.minimum.accumulate(ms, axis=0)
    ms = np.minimum.accumulate(ms[:, ::-1], axis=1)[:, ::-1]
    least = _least(gpu.shares_pct, worth, shares)
    return BatchTypes(ms[np.isfinite(least)], least[np.isfinite(least)])


def _line(known: list[tuple[int, float]], rows: Floats) -> Floats:
    batch, ms = (np.array(column, float) for column in zip(*known, strict=True))
    found: Floats = np.interp(rows, batch, ms) * np.maximum(1.0, rows / batch[-1])
    return found


def _least(legal_pct: Sequence[int], worth: Floats, shares: Sequence[int]) -> Floats:
    """What the cheapest legal share costs that does as each measured share does; else infinite."""
    found = np.full(len(shares), np.inf)
    which = np.searchsorted(shares, legal_pct, side="right") - 1
    for place, value in zip(which.tolist(), worth.tolist(), strict=True):
        if place >= 0:
            found[place] = min(found[place], value)
    return found
