"""How full a cycle of batches may be while random arrivals still meet their SLO."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: Part of its slots that a model may use of (batch rows, starts within its patience), in 0..1.
#: ``attainment`` and ``cv`` broadcast against the arrays.
Rule = Callable[[Floats, Floats, Floats, Floats], Floats]

_FLOOR: Final = 1e-9


def worst_case(rows: Floats, starts: Floats, attainment: Floats, cv: Floats) -> Floats:
    """Nexus' rule for arrivals as even as their rate: full batches if one start is in time.

    ``duty + L(b) <= SLO`` (gpulet section 2.2) is ``starts >= 1`` for starts = (SLO - L) / duty.
    """
    return np.where(starts >= 1.0 - _FLOOR, 1.0, 0.0)


def stochastic(rows: Floats, starts: Floats, attainment: Floats, cv: Floats) -> Floats:
    """Use that keeps ``attainment`` of random arrivals in time: a bulk-service queue.

    Every start serves up to ``rows`` of what waits, and a request can afford ``starts`` of them.
    It is late if more than ``rows * starts`` stand before it. The tail of that queue is at most
    exp(-t x) where t solves E exp(t A) = exp(t rows) for A arrivals between two starts (Lundberg's
    bound; Bailey's queue, 1954). For Poisson arrivals in clumps of cv^2, which have that variance,
    this is use = c t / (exp(c t) - 1) with c = cv^2; and t = ln(1 / (1 - attainment)) / x for the
    x = (starts - 1) rows that may be left over by the first start. With one start only, nothing
    may be left over: use is then the quantile of the arrivals (Wilson and Hilferty, 1931).
    """
    room = np.maximum((starts - 1.0) * rows, _FLOOR)
    clump = np.maximum(cv, _FLOOR) ** 2
    bend = clump * -np.log(np.maximum(1.0 - attainment, _FLOOR)) / room
    tail = np.where(bend < 1e-6, 1.0, bend / np.expm1(np.minimum(bend, 500.0)))
    use = np.maximum(tail, _single(rows / clump, attainment) * clump / rows)
    return np.where(starts >= 1.0 - _FLOOR, np.minimum(use, 1.0), 0.0)


def _single(rows: Floats, attainment: Floats) -> Floats:
    """Mean of the Poisson arrivals that stay within ``rows`` with probability ``attainment``."""
    more = rows + 1.0
    root = 1.0 - 1.0 / (9.0 * more) - normal_quantile(attainment) / (3.0 * np.sqrt(more))
    mean: Floats = more * np.maximum(root, 0.0) ** 3
    return mean


def normal_quantile(probability: Floats) -> Floats:
    """z with P(N <= z) = probability, for 0.5..1 (Abramowitz and Stegun 26.2.23, within 5e-4)."""
    t = np.sqrt(-2.0 * np.log(np.maximum(1.0 - probability, 1e-300)))
    top = 2.515517 + t * (0.802853 + t * 0.010328)
    return np.maximum(t - top / (1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308))), 0.0)


def impatience(slack_ms: Floats, attainment: Floats) -> Floats:
    """ln(1 / (1 - attainment)) / slack: what ``busy_limit`` needs of who shares a server."""
    odds = -np.log(np.maximum(1.0 - attainment, _FLOOR))
    haste: Floats = odds / np.maximum(slack_ms, _FLOOR)
    return haste


def busy_limit(work_ms: float, haste: float) -> float:
    """How busy a server may be, in 0..1, for requests of that ``impatience``.

    ``work_ms`` is the mean work of an arrival, weighted by work and by cv^2. In heavy traffic
    the work that waits is exponential with mean busy * work / (2 (1 - busy)) (Kingman, 1961), and
    it may pass the slack for ``1 - attainment`` of the requests.
    """
    return 1.0 / (1.0 + haste * work_ms / 2.0)
