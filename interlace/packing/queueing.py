"""Several models in one partition under random arrivals: the part of each one's requests in time.

The dispatcher's own order: earliest deadline first, whoever is there is served at once, in a batch
of what has gathered. Nobody waits where nobody is there, so that all is weighed with how busy the
partition is. Constants were found on one partition played request by request;
`bench.planning.promise` says how close it is.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

#: Utilisation that no partition of several models exceeds.
BUSIEST: Final = 0.985
#: Part of a request's slack that it waits at most while its batch fills, on average.
GATHER: Final = 0.5
_ROUNDS: Final = 8
_IDLE: Final = 1e-3
_NOTHING: Final = 1e-12


class Turns(NamedTuple):
    """Models of partitions: arrays of (..., turns), where a turn without a rate is not there.

    L(b) is a line in b. ``alone_rows_per_ms`` is what the model is served of if nobody else is
    there.
    """

    rows_per_ms: Floats
    batch: Floats
    first_ms: Floats  #: L(1)
    row_ms: Floats  #: what a further row costs
    slo_ms: Floats
    loss: Floats  #: the part of the requests that may be late
    cv: Floats
    alone_rows_per_ms: Floats
    elsewhere: Floats  #: 1 where it has other hosts: then it takes what time is idle here


def lateness(turns: Turns) -> Floats:
    """Late requests of each turn over those that may be: its promise holds up to 1.

    A request is late if it meets a batch of another model that, with more urgent work behind it,
    ends too late (the batch's residual is uniform). A model with other hosts may run here in all
    idle time, since all its hosts take from one queue. A request is late, too, if it would be late
    in its own queue alone, in the time that the others leave. Infinite where the rows that gather
    beside the longest batch of the others take longer than the SLO. Infinite also where a partition
    of several is busier than ``BUSIEST``.
    """
    formed = _formed(turns)
    run_ms = turns.first_ms + turns.row_ms * (formed - 1.0)
    busy = turns.rows_per_ms * run_ms / formed
    full = np.minimum(turns.batch, formed + np.sqrt(formed - 1.0))
    length_ms = turns.first_ms + turns.row_ms * (full - 1.0)
    apart = ~np.eye(busy.shape[-1], dtype=bool)
    idle = np.maximum(1.0 - busy.sum(axis=-1, keepdims=True), 0.0)
    others = busy[..., None, :] * apart
    there = np.where(busy > 0.0, np.maximum(busy, idle * turns.elsewhere), 0.0)
    there = there[..., None, :] * apart
    longest_ms = np.where(others > 0.0, length_ms[..., None, :], 0.0).max(axis=-1)
    gathered = np.minimum(turns.batch - 1.0, turns.rows_per_ms * longest_ms)
    slack_ms = turns.slo_ms - turns.first_ms - turns.row_ms * gathered
    after_ms = turns.slo_ms[..., None, :] - turns.slo_ms[..., :, None]
    patience_ms = np.maximum(slack_ms, _NOTHING)[..., :, None]
    urgent = busy[..., None, :] * np.clip(1.0 - after_ms / patience_ms, 0.0, 1.0)
    ahead = urgent.sum(axis=-1)
    # A further row joins a batch, and costs as much as one in a full one as batches fill.
    row_ms = turns.row_ms + (run_ms / formed - turns.row_ms) * formed / turns.batch
    burst_ms = row_ms * (1.0 + turns.cv**2) / 2.0
    work_ms = (urgent * burst_ms[..., None, :]).sum(axis=-1) / np.maximum(ahead, _NOTHING)
    mean_ms = work_ms / (2.0 * np.maximum(1.0 - ahead, _IDLE))
    meets = beyond(patience_ms, length_ms[..., None, :], mean_ms[..., :, None], ahead[..., :, None])
    blocked = np.minimum((there * meets).sum(axis=-1), 1.0)
    beside = others.sum(axis=-1)
    own = turns.rows_per_ms / np.maximum(
        turns.alone_rows_per_ms * np.maximum(1.0 - beside, _IDLE), _NOTHING
    )
    late = own + blocked / turns.loss
    overfull = (beside > 0.0) & (beside + busy > BUSIEST)
    late = np.where((slack_ms <= 0.0) | overfull, np.inf, late)
    found: Floats = np.where(turns.rows_per_ms > 0.0, late, 0.0)
    return found


def beyond(slack_ms: Floats, length_ms: Floats, mean_ms: Floats, ahead: Floats) -> Floats:
    """P(R + Q > slack): R uniform up to a length, Q exponential with a probability of ``ahead``."""
    alone = np.maximum(1.0 - slack_ms / length_ms, 0.0)
    mean_ms = np.maximum(mean_ms, _NOTHING)
    left_ms = np.maximum(slack_ms - length_ms, 0.0)
    tail = np.exp(-left_ms / mean_ms) - np.exp(-slack_ms / mean_ms)
    late: Floats = alone + ahead * mean_ms / length_ms * tail
    return late


def _formed(turns: Turns) -> Floats:
    """Rows of a batch on average: the first, and what arrives while it waits for its turn.

    Waits are those of models in order of urgency (Cobham 1954), but no longer than SLOs bear.
    """
    before = turns.slo_ms[..., None, :] <= turns.slo_ms[..., :, None]
    formed = np.ones_like(turns.rows_per_ms)
    for step in range(_ROUNDS):
        run_ms = turns.first_ms + turns.row_ms * (formed - 1.0)
        busy = turns.rows_per_ms * run_ms / formed
        residual_ms = (busy * run_ms).sum(axis=-1, keepdims=True) / 2.0
        urgent = (before * busy[..., None, :]).sum(axis=-1)
        idle = np.maximum(1.0 - urgent + busy, _IDLE) * np.maximum(1.0 - urgent, _IDLE)
        bearable_ms = GATHER * np.maximum(turns.slo_ms - run_ms, 0.0)
        wait_ms = np.minimum(residual_ms / idle, bearable_ms)
        rows = np.minimum(turns.batch, 1.0 + turns.rows_per_ms * wait_ms)
        formed = rows if step < 2 else (formed + rows) / 2.0
    return formed


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

    ``load`` is the work that arrives, in hosts; ``variance_ms`` its variance in a ms. A request
    that waits for a free host waits for the rest of a batch, on average at most half of
    ``longest_ms`` over k. In heavy traffic the work of k hosts is a Brownian motion with a drift of
    load - k (Kingman 1961): P(wait > t) = exp(-2 (k - load) k t / variance). So k is the larger
    root of (k - load) (2 k slack - longest) = variance ln(1 / loss). Infinite where there is no
    slack.
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
