"""All lower bounds of one question."""

from __future__ import annotations

from collections.abc import Sequence

from interlace.core.hardware import Gpu
from interlace.core.plan import Demand
from interlace.core.profile import Profiles
from interlace.packing.bounds.area import area_of
from interlace.packing.bounds.bound import LowerBound
from interlace.packing.bounds.configuration import configuration_of
from interlace.packing.bounds.memory import memory_of
from interlace.packing.bounds.rates import highest_rates
from interlace.perf.latency import Quantile


def lower_bound(
    demand: Sequence[Demand], gpu: Gpu, profiles: Profiles, quantile: Quantile = "p95_ms"
) -> LowerBound:
    """The area, configuration and memory bounds for accelerators like ``gpu``.

    ``quantile`` is the latency that plans count on; with ``median_ms`` the bound holds for
    plans that count on batches taking no longer than that.
    """
    rates = highest_rates(demand, gpu, profiles, quantile)
    return LowerBound(
        area_of(rates, gpu),
        configuration_of(rates, gpu),
        memory_of(rates, gpu, profiles),
        rates.excluded,
    )
