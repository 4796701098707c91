"""The least memory for weights with which SLOs can be kept, whatever stays in it.

For independent (Poisson) arrivals and a server that does not know the future. A request sees what
is held as time sees it (PASTA), so what holds of the mean over requests holds of the mean memory:

* A request is in time only if what is not held or on its way when it comes can be copied, or read
  from the host, within the SLO. Of a model's requests the part ``attainment`` must be; its mean
  memory is at least that part of the least bytes with which a cold start is in time. Those are
  bounded by weak duality: every layer is kept (bytes), copied (time of links) or read from the
  host (time of execution), links and executions each have the SLO, and any prices of the two give
  a bound.
* What is not held is copied: rate x (1 - the part of the time that a layer is held) x its copy, of
  layers that may not be read from the host. One load serves the requests of an SLO's time at most.
  That is at most what links have; layers by copies saved a byte (the fractional knapsack).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf, isfinite
from typing import Final

import numpy as np
import numpy.typing as npt

from interlace.core.loading import HostLinks
from interlace.core.plan import Demand, as_rate_rps
from interlace.core.profile import LayerProfile
from interlace.perf.cold_start import reads_too_long

#: Thirds of an interval that the search for the best price of a resource looks at.
_LOOKS: Final = 50
_MS_PER_S: Final = 1000.0

Floats = npt.NDArray[np.float64]
Layers = tuple[LayerProfile, ...]


@dataclass(frozen=True, slots=True)
class MemoryBound:
    """Bytes over all accelerators: for cold starts within SLOs, and for what links can carry.

    ``late`` are models whose SLO is too short even with all weights there.
    """

    in_time_bytes: float
    carried_bytes: float
    late: tuple[str, ...]

    def sentence(self) -> str:
        """The bound in words."""
        if self.late:
            return f"even with all weights kept too slow for the SLO: {', '.join(self.late)}"
        least, why = max(
            (self.in_time_bytes, "cold starts would be late"),
            (self.carried_bytes, "links could not carry the loads"),
        )
        if least < 1.0:
            return "no SLO needs weights that stay: every cold start can be in time"
        return f"no residency keeps these SLOs with less than {least / 1e6:.0f} MB: {why}"


def memory_bound(
    demand: Sequence[Demand], layers: Mapping[str, Layers], links: HostLinks, accelerators: int = 1
) -> MemoryBound:
    """The bound for these models on so many accelerators with such links."""
    known = cache(least_bytes)
    asked = [one for one in demand if one.rows_per_s > 0]
    least = {one.model: known(layers[one.model], links, one.slo_ms) for one in asked}
    return MemoryBound(
        sum(one.attainment * least[one.model] for one in asked if isfinite(least[one.model])),
        _carried_bytes(asked, layers, links, accelerators),
        tuple(model for model, nbytes in least.items() if not isfinite(nbytes)),
    )


def least_bytes(layers: Layers, links: HostLinks, slo_ms: float) -> float:
    """No cold start with less of the weights there ends within the SLO; infinite if none does."""
    weighty = [one for one in layers if one.weights_bytes]
    nbytes = np.array([one.weights_bytes for one in weighty], float)
    copy_ms = np.array([one.copy_ms for one in weighty])
    added_ms = np.array([max(0.0, one.run_host_ms - one.run_ms) for one in weighty])
    spare_ms = slo_ms - sum(
        min(one.run_ms, one.run_host_ms) if one.weights_bytes else one.run_ms for one in layers
    )
    if spare_ms < 0:
        return inf
    if links.takes_cores:
        cheaper_ms = np.minimum(copy_ms, added_ms)
        return _highest(
            lambda price: float(np.minimum(nbytes, price * cheaper_ms).sum()) - price * spare_ms,
            _dearest(nbytes, cheaper_ms),
        )
    links_ms = slo_ms * (links.peers + 1)

    def of_link(link_price: float) -> float:
        copied = np.minimum(nbytes, link_price * copy_ms)
        best = _highest(
            lambda price: float(np.minimum(copied, price * added_ms).sum()) - price * spare_ms,
            _dearest(nbytes, added_ms),
        )
        return best - link_price * links_ms

    return max(0.0, _highest(of_link, _dearest(nbytes, copy_ms)))


def _dearest(nbytes: Floats, time_ms: Floats) -> float:
    """The price above which nothing changes any more."""
    return float(np.max(nbytes[time_ms > 0] / time_ms[time_ms > 0], initial=0.0))


def _highest(value: Callable[[float], float], most: float) -> float:
    """About the maximum of a concave function between 0 and ``most``; never above it."""
    low, high, best = 0.0, most, 0.0
    for _ in range(_LOOKS):
        first, second = low + (high - low) / 3, high - (high - low) / 3
        one, two = value(first), value(second)
        best = max(best, one, two)
        low, high = (first, high) if one < two else (low, second)
    return best


def _carried_bytes(
    asked: Sequence[Demand], layers: Mapping[str, Layers], links: HostLinks, accelerators: int
) -> float:
    worths: list[tuple[float, float]] = []  #: ms a second that keeping a layer saves, its bytes
    for one in asked:
        rate_rps = as_rate_rps(one.rows_per_s)
        loads_per_s = rate_rps / (1.0 + rate_rps * one.slo_ms / _MS_PER_S)
        worths += [
            (loads_per_s * layer.copy_ms, float(layer.weights_bytes))
            for layer in layers[one.model]
            if layer.weights_bytes and reads_too_long(layer)
        ]
    over_ms = sum(ms for ms, _ in worths) - _MS_PER_S * (links.peers + 1) * accelerators
    least = 0.0
    for saved_ms, nbytes in sorted(worths, key=lambda one: -one[0] / one[1]):
        if over_ms <= 0:
            break
        part = min(1.0, over_ms / saved_ms) if saved_ms else 0.0
        least += part * nbytes
        over_ms -= part * saved_ms
    return least
