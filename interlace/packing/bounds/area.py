"""The area bound: every request at its cheapest share and batch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from interlace.core.hardware import Gpu
from interlace.packing.bounds.bound import Bound
from interlace.packing.bounds.rates import Floats, ShareRates


def area(rates: ShareRates, gpu: Gpu) -> Bound:
    """G >= sum_i attainment_i rate_i min_{b,p: L_i(b,p) <= SLO_i} p L_i(b,p) / b.

    The linear program over time fractions of every (model, share, batch) with the accelerators'
    area as its only constraint; its optimum is this sum, its duals are the terms.
    """
    return bound_at(rates, fractions(rates, gpu))


def fractions(rates: ShareRates, gpu: Gpu) -> Floats:
    """The part of an accelerator that each share is."""
    return np.array([gpu.fraction(share) for share in rates.shares_pct])


def cheapest(rates: ShareRates, worth: Floats) -> tuple[Floats, npt.NDArray[np.intp]]:
    """Accelerators per request/s of each model at its cheapest share, and that share's number.

    ``worth`` is what a partition of each share costs, in accelerators.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        each = np.where(rates.highest_rows_per_s > 0, worth / rates.highest_rows_per_s, np.inf)
    best = np.argmin(each, axis=1)
    return each[np.arange(len(best)), best], best


def bound_at(rates: ShareRates, worth: Floats) -> Bound:
    """sum_i needed_i min_p worth_p / rate_ip, with its terms for prices.

    A lower bound wherever no legal layout's partitions are worth more than one accelerator: time
    in a partition of share p is then never cheaper than ``worth`` says.
    """
    each, _ = cheapest(rates, worth)
    price = {
        one.model: one.attainment * cost
        for one, cost in zip(rates.demand, each.tolist(), strict=True)
    }
    return Bound(float(rates.needed_rows_per_s @ each), price)
