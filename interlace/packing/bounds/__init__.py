"""What no scheduler can do better than with these profiles, and the price of one more request.

Every request that ends in time is in a batch with L(b, p) <= SLO, and only ``attainment`` of each
rate must. Valid for any scheduler that cuts accelerators into their legal shares, on these
assumptions. Running side by side never speeds a model up, and a larger share is never slower. Rows
beyond the largest measured batch gain nothing. Batches take the measured quantile that plans count
on. The gathering bound also assumes random arrivals, with the demand's coefficient of variation.
Models must be resident to be served. Models that no share serves within the SLO are left out, and
named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from interlace.core.hardware import Gpu
from interlace.core.plan import Demand
from interlace.core.profile import Profiles
from interlace.packing.bounds.configuration import area, bound_at, dearest_worth, fractions
from interlace.packing.bounds.gathering import gathering
from interlace.packing.bounds.rates import Bound, ShareRates, highest_rates
from interlace.perf.latency import Quantile
from interlace.perf.memory import needed_bytes


@dataclass(frozen=True, slots=True)
class LowerBound:
    """Four bounds: each holds, so the largest does.

    ``excluded`` are models that no share serves in time: they are in none of the bounds.
    """

    area: Bound
    configuration: Bound
    gathering: Bound
    memory: Bound
    excluded: tuple[str, ...] = ()

    @property
    def best(self) -> Bound:
        """The largest of the four."""
        every = (self.configuration, self.area, self.gathering, self.memory)
        return max(every, key=lambda bound: bound.accelerators)

    @property
    def gpus(self) -> int:
        """Whole accelerators; a solver's rounding does not make one more."""
        return ceil(self.best.accelerators - 1e-6)


def lower_bound(
    demand: Sequence[Demand], gpu: Gpu, profiles: Profiles, quantile: Quantile = "p95_ms"
) -> LowerBound:
    """The area, configuration, gathering and memory bounds for accelerators like ``gpu``.

    ``quantile`` is the latency that plans count on; with ``median_ms`` the bound holds for
    plans that count on batches taking no longer than that.
    """
    rates = highest_rates(demand, gpu, profiles, quantile)
    worth = dearest_worth(rates, gpu) if rates.demand else fractions(rates, gpu)
    full = bound_at(rates, worth)
    return LowerBound(
        area(rates, gpu),
        full,
        gathering(rates.demand, gpu, worth, full, profiles, quantile),
        memory(rates, gpu, profiles),
        rates.excluded,
    )


def most_in_time(
    demand: Sequence[Demand], gpu: Gpu, accelerators: float, profiles: Profiles
) -> float:
    """The most requests/s that end in time on so many accelerators like ``gpu``.

    Batches take the median. Requests of each model take at least their price in the configuration
    bound, whatever is served of the others: the cheapest first, up to their rates (Dantzig, 1957).
    """
    whole = [replace(one, attainment=1.0) for one in demand]
    rates = highest_rates(whole, gpu, profiles, "median_ms")
    if not rates.demand:
        return 0.0
    price = bound_at(rates, dearest_worth(rates, gpu)).price
    found, left = 0.0, accelerators
    for one in sorted(rates.demand, key=lambda one: price[one.model]):
        served_rps = min(one.rows_per_s, left / price[one.model])
        found += served_rps
        left -= served_rps * price[one.model]
    return found


def memory(rates: ShareRates, gpu: Gpu, profiles: Profiles) -> Bound:
    """G >= sum of weights and activations over the memory of one; more requests cost nothing.

    Swapped weights do not count: they need not be resident.

    Behind walls, one accelerator has what the partitions of its roomiest layout have.
    """
    held = [one.model for one in rates.demand]
    total = needed_bytes(held, profiles, gpu)
    return Bound(total / _room_bytes(gpu), dict.fromkeys(held, 0.0))


def _room_bytes(gpu: Gpu) -> int:
    walls = dict(gpu.walls)
    if not gpu.layouts or any(s not in walls for layout in gpu.layouts for s in layout):
        return gpu.memory_bytes
    return min(gpu.memory_bytes, max(sum(walls[s] for s in layout) for layout in gpu.layouts))
