"""The area bound: every request at its cheapest share and batch."""

from __future__ import annotations

from collections.abc import Sequence

from interlace.core.hardware import Gpu
from interlace.core.plan import Demand
from interlace.core.profile import Profiles
from interlace.perf.bounds.bound import Bound
from interlace.perf.bounds.rates import servable


def area(demand: Sequence[Demand], gpu: Gpu, profiles: Profiles) -> Bound:
    """G >= sum_i attainment_i rate_i min_{b,p: L_i(b,p) <= SLO_i} p L_i(b,p) / b.

    The linear program over time fractions of every (model, share, batch) with the accelerators'
    area as its only constraint; its optimum is this sum, its duals are the terms.
    """
    price = {
        one.model: one.attainment * min(gpu.fraction(s) / rate for s, rate in rates.items())
        for one, rates in servable(demand, gpu, profiles)
    }
    total = sum(price[one.model] * one.rate_rps for one in demand if one.model in price)
    return Bound(total, price)
