"""How many alike partitions a pool of models needs that all of them host together.

The dispatcher's own order over k hosts: whoever has the nearest deadline runs next, wherever a host
is free, in a batch of what has gathered. Where hosts are scarce heads wait longer, batches grow and
cost less a row; so a pool is kept busy to the last, and what is left to chance is the work that
arrives in a while. Many hosts even that out, and none is held up by one long batch.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from interlace.packing.queueing import Floats

#: Of the variance that heavy traffic says; found on pools played request by request.
_CAREFUL: Final = 1.1
#: Bursts that last as long as an SLO count for more than their cv squared; regular arrivals of
#: several models are as random as Poisson's.
_BURSTS: Final = 2.4
#: Hosts of one model that are looked at where batches may not wait for one another.
_MOST_LOSSY: Final = 64
_ROUNDING: Final = 1e-12


def burstiness(cv: Floats) -> Floats:
    """Variance of the arrivals in a while over their mean."""
    found: Floats = _CAREFUL * np.maximum(cv, 1.0) ** _BURSTS
    return found


def hosts_needed(
    load: Floats | float,
    variance_ms: Floats | float,
    longest_ms: Floats | float,
    slack_ms: Floats | float,
    loss: Floats | float,
) -> Floats:
    """Hosts with which all but a part ``loss`` of the work waits at most ``slack_ms``.

    ``load`` is the work that arrives, in hosts; ``variance_ms`` its variance in a ms; who waits for
    a free host meets what is left of a batch, half of ``longest_ms`` over k at most on average. In
    heavy traffic the work of k hosts is a Brownian motion with a drift of load - k (Kingman 1961),
    P(wait > t) = exp(-2 (k - load) k t / variance), so that k is the larger root of
    (k - load) (2 k slack - longest) = variance ln(1 / loss). Infinite where there is no slack.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        drained = 2.0 * slack_ms * load
        root = (longest_ms - drained) ** 2 + 8.0 * slack_ms * variance_ms * np.log(1.0 / loss)
        hosts = (longest_ms + drained + np.sqrt(root)) / (4.0 * slack_ms)
    return np.where((slack_ms > 0.0) & np.isfinite(load), hosts, np.inf)


def lossy_hosts(
    load: Floats, latency_ms: Floats, slack_ms: Floats, loss: Floats, peak: Floats
) -> Floats:
    """Hosts of one model whose batches may not wait for one another, with a part ``loss`` late.

    A request is late if all k hosts are busy, by Erlang's C formula for ``load`` hosts of work, and
    none of them ends within ``slack_ms``: (1 - slack / latency)^k, since what is left of k running
    batches is uniform. ``peak`` is the variance of arrivals over their mean: k and ``load`` are
    divided by it (Hayward's approximation; Fredericks, Bell System Technical Journal 1980).
    Infinite beyond ``_MOST_LOSSY``.
    """
    late = np.clip(1.0 - slack_ms / latency_ms, 0.0, 1.0)
    offered, needed = load / peak, np.full(load.shape, np.inf)
    blocked = np.ones(load.shape)  # Erlang's B formula for k - 1 hosts
    for k in range(1, _MOST_LOSSY + 1):
        blocked = offered * blocked / (k + offered * blocked)
        idle = 1.0 - np.minimum(offered / k, 1.0) * (1.0 - blocked)
        waits = np.where(offered < k, blocked / np.maximum(idle, _ROUNDING), 1.0)
        enough = (offered < k) & (waits * late ** (k * peak) <= loss)
        needed = np.where(enough & np.isinf(needed), np.ceil(k * peak), needed)
    return needed
