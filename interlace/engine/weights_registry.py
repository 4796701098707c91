"""Which models' weights are swapped on which accelerators."""

from __future__ import annotations

from collections.abc import Hashable
from math import inf

from interlace.core.hardware import Gpu
from interlace.core.profile import LayerProfile
from interlace.engine.live_partition import ModelState
from interlace.engine.residency import GapEstimator, GpuWeights, ModelWeights
from interlace.engine.state import DeployedModel, EngineState
from interlace.perf.memory import comes_and_goes
from interlace.policy.base import System
from interlace.policy.cold_curve import ColdCurve


class WeightsRegistry:
    """Keeps ``EngineState.weights_on`` in line with what is loaded where.

    A model is known on an accelerator from the end of its first load there until no partition has
    it loaded any more; devices forget what they hold at the same time. One that only begins to load
    it elsewhere keeps nothing.
    """

    def __init__(self, state: EngineState, system: System) -> None:
        self._state = state
        self._system = system
        self._curves: dict[Hashable, ColdCurve] = {}
        self._rates: dict[str, GapEstimator] = {}

    def update(self, now_ms: float) -> list[tuple[str, str]]:
        """Partitions or models changed: know what can be held where.

        Returns models whose weights no budget can hold, with the reason.
        """
        state = self._state
        there = {gpu.id: gpu for gpu in state.fleet.gpus if gpu.weights_bytes}
        if not there and not state.weights_on:
            return []
        for gone in [name for name in state.weights_on if name not in there]:
            del state.weights_on[gone]
        too_large: dict[str, str] = {}
        for name, gpu in there.items():
            place = state.weights_on.setdefault(name, GpuWeights(gpu))
            loaded = {
                model: state.models[model]
                for live in state.partitions.values()
                if live.gpu == name
                for model, stage in live.model_states.items()
                if stage is not ModelState.LOADING and model in state.models
                if comes_and_goes(state.models[model].profile, gpu)
            }
            for model in [one for one in place.models if one not in loaded]:
                place.forget(model)
            for model in [one for one in loaded if one not in place.models]:
                entry = self._entry(loaded[model], place, now_ms)
                place.know(entry)
                reason = self._too_large(entry, place)
                if reason is not None:
                    too_large[model] = reason
        for model, deployed in state.models.items():
            entries = {n: p.models[model] for n, p in state.weights_on.items() if model in p.models}
            deployed.weights = entries
            if not entries:
                deployed.ready_ms = -inf
            if entries and deployed.queue.rows:
                state.cold_waiting[model] = None
        return list(too_large.items())

    def _entry(self, deployed: DeployedModel, place: GpuWeights, now_ms: float) -> ModelWeights:
        model = deployed.demand.model
        curve = self._curve(deployed.profile.layers, place.gpu)
        rate = self._rates.get(model)
        if rate is None:
            planned_rps, visit_ms = deployed.demand.rows_per_s, curve.plan().end_ms
            rate = self._rates[model] = GapEstimator(now_ms, planned_rps, visit_ms)
        entry = ModelWeights(model, curve, deployed.queue, rate, place)
        entry.pinned, entry.keep_ms = deployed.pinned, deployed.keep_ms
        return entry

    def _curve(self, layers: tuple[LayerProfile, ...], gpu: Gpu) -> ColdCurve:
        """One for all models of equal layers."""
        known = layers, gpu.links, gpu.host
        found = self._curves.get(known)
        if found is None:
            found = self._curves[known] = ColdCurve(self._system.cold.cold_start, *known)
        return found

    def forget(self, model: str) -> None:
        """The deployment is gone."""
        self._rates.pop(model, None)

    def arrived(self, deployed: DeployedModel, now_ms: float) -> None:
        """A request came for a model that is known."""
        self._rates[deployed.demand.model].arrived(now_ms)
        for gpu, entry in deployed.weights.items():
            self._state.weights_on[gpu].missing.changed(entry)

    def _too_large(self, entry: ModelWeights, place: GpuWeights) -> str | None:
        """Why a model's weights could never come, beside those that stay there."""
        budget_bytes, needed_bytes = place.gpu.weights_bytes, entry.whole_bytes
        if place.gpu.links.takes_cores:  # what is read in a file has to be in memory meanwhile
            needed_bytes = sum(layer.weights_bytes for layer in entry.curve.layers)
        pinned_bytes = place.pinned_bytes - entry.pinned_bytes
        if needed_bytes + pinned_bytes <= budget_bytes:
            return None
        beside = f", of which {pinned_bytes / 1e6:.1f} MB are pinned" if pinned_bytes else ""
        return (
            f"its weights take {needed_bytes / 1e6:.1f} MB, and the memory for weights is "
            f"{budget_bytes / 1e6:.1f} MB{beside}: give it more (--memory)"
        )
