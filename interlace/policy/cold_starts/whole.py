"""Every layer alike: copied before the first one runs, as they run, or not at all."""

from __future__ import annotations

from collections.abc import Sequence

from interlace.core.loading import HostLinks, LoadPlan, LoadStep, WeightPath
from interlace.core.profile import LayerProfile
from interlace.perf.cold_start import planned


def copy(
    layers: Sequence[LayerProfile], links: HostLinks, kept: frozenset[int] = frozenset()
) -> LoadPlan:
    """On demand: copy the model, then run it (DeepPlan section 5.1, Baseline)."""
    return planned(layers, _steps(layers), links.alone, overlapped=False, kept=kept)


def pipeswitch(
    layers: Sequence[LayerProfile], links: HostLinks, kept: frozenset[int] = frozenset()
) -> LoadPlan:
    """Copy layer after layer while those before run (PipeSwitch, as DeepPlan measures it)."""
    return planned(layers, _steps(layers), links.alone, kept=kept)


def left(
    layers: Sequence[LayerProfile], links: HostLinks, kept: frozenset[int] = frozenset()
) -> LoadPlan:
    """Read every layer where it lies: nothing is begun."""
    return planned(layers, _steps(layers, WeightPath.HOST), links.alone, kept=kept)


def _steps(layers: Sequence[LayerProfile], via: WeightPath = WeightPath.COPY) -> list[LoadStep]:
    return [
        LoadStep(layer.name, via if layer.weights_bytes else WeightPath.KEEP) for layer in layers
    ]
