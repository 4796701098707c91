"""All lower bounds of one question."""

from __future__ import annotations

from collections.abc import Sequence

from interlace.core.hardware import Gpu
from interlace.core.plan import Demand
from interlace.core.profile import Profiles
from interlace.perf.bounds.area import area
from interlace.perf.bounds.bound import LowerBound
from interlace.perf.bounds.configuration import configuration
from interlace.perf.bounds.memory import memory


def lower_bound(demand: Sequence[Demand], gpu: Gpu, profiles: Profiles) -> LowerBound:
    """The area, configuration and memory bounds for accelerators like ``gpu``."""
    return LowerBound(
        area(demand, gpu, profiles),
        configuration(demand, gpu, profiles),
        memory(demand, gpu, profiles),
    )
