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


def burstiness(cv: Floats) -> Floats:
    """Variance of the arrivals in a while over their mean."""
    found: Floats = _CAREFUL * np.maximum(cv, 1.0) ** _BURSTS
    return found


def hosts_needed(
    load: Floats, variance_ms: Floats, longest_ms: Floats, slack_ms: Floats, loss: Floats
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
