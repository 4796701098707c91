"""The memory bound: weights and one instance of every model somewhere."""

from __future__ import annotations

from collections.abc import Sequence

from interlace.core.hardware import Gpu
from interlace.core.plan import Demand
from interlace.core.profile import Profiles
from interlace.perf.bounds.bound import Bound
from interlace.perf.bounds.rates import servable


def memory(demand: Sequence[Demand], gpu: Gpu, profiles: Profiles) -> Bound:
    """G >= sum of weights and activations over the memory of one; more requests cost nothing."""
    models = [one.model for one, _ in servable(demand, gpu, profiles)]
    total = sum(profiles[m].weights_bytes + profiles[m].activation_bytes for m in models)
    return Bound(total / gpu.memory_bytes, dict.fromkeys(models, 0.0))
