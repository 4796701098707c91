"""How a model that is not resident gets in: all of it copied, then run."""

from __future__ import annotations

from interlace.core.hardware import Fleet, Gpu
from interlace.core.loading import LoadPlan, LoadStep, WeightPath
from interlace.core.profile import Profile


def copy(profile: Profile, gpu: Gpu, fleet: Fleet) -> LoadPlan:
    """Copy every layer, then run: the baseline of DeepPlan section 5."""
    steps = tuple(LoadStep(layer.name, WeightPath.COPY, gpu.id) for layer in profile.layers)
    return LoadPlan(profile.model, steps, profile.load_ms)
