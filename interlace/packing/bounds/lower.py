"""All lower bounds of one question."""

from __future__ import annotations

from collections.abc import Sequence

from interlace.core.hardware import Gpu
from interlace.core.plan import Demand
from interlace.core.profile import Profiles
from interlace.packing.bounds.bound import Bound, LowerBound
from interlace.packing.bounds.configuration import area, bound_at, dearest_worth, fractions
from interlace.packing.bounds.gathering import gathering
from interlace.packing.bounds.rates import ShareRates, highest_rates
from interlace.perf.latency import Quantile
from interlace.perf.memory import needed_bytes


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


def memory(rates: ShareRates, gpu: Gpu, profiles: Profiles) -> Bound:
    """G >= sum of weights and activations over the memory of one; more requests cost nothing.

    Weights that come and go need not be anywhere.

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
