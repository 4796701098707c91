"""Which models' weights come and go on which accelerators."""

from __future__ import annotations

from collections.abc import Hashable
from math import inf

from interlace.core.loading import HostLinks
from interlace.core.profile import LayerProfile
from interlace.engine.arrival_rate import ArrivalRate
from interlace.engine.residency import GpuWeights, ModelWeights
from interlace.engine.state import DeployedModel, EngineState
from interlace.perf.memory import comes_and_goes
from interlace.policy.base import System
from interlace.policy.cold_curve import ColdCurve


class WeightsRegistry:
    """Keeps ``EngineState.weights_on`` in line with what is loaded where.

    A model is known on an accelerator from its first load there until no partition has it loaded
    any more; devices forget what they hold at the same time.
    """

    def __init__(self, state: EngineState, system: System) -> None:
        self._state = state
        self._system = system
        self._curves: dict[tuple[Hashable, HostLinks], ColdCurve] = {}
        self._rates: dict[str, ArrivalRate] = {}

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
        too_large: list[tuple[str, str]] = []
        for name, gpu in there.items():
            place = state.weights_on.setdefault(name, GpuWeights(gpu))
            loaded = {
                model: state.models[model]
                for live in state.partitions.values()
                if live.gpu == name
                for model in live.model_states
                if model in state.models and comes_and_goes(state.models[model].profile, gpu)
            }
            for model in [one for one in place.models if one not in loaded]:
                place.forget(model)
            for model, deployed in loaded.items():
                if model not in place.models:
                    entry = place.models[model] = self._entry(deployed, place, now_ms)
                    least_bytes = entry.curve.nbytes(entry.plan().brought)
                    if least_bytes > gpu.weights_bytes:
                        too_large.append((model, _too_large(least_bytes, gpu.weights_bytes)))
        for model, deployed in state.models.items():
            entries = {n: p.models[model] for n, p in state.weights_on.items() if model in p.models}
            deployed.weights = entries
            if not entries:
                deployed.ready_ms = -inf
            if entries and deployed.queue.rows:
                state.cold_waiting[model] = None
        return too_large

    def _entry(self, deployed: DeployedModel, place: GpuWeights, now_ms: float) -> ModelWeights:
        model = deployed.demand.model
        curve = self._curve(deployed.profile.layers, place.gpu.links)
        rate = self._rates.get(model)
        if rate is None:
            planned_rps, visit_ms = deployed.demand.rows_per_s, curve.plan().end_ms
            rate = self._rates[model] = ArrivalRate(now_ms, planned_rps, visit_ms)
        entry = ModelWeights(model, curve, deployed.queue, rate, place)
        entry.pinned, entry.keep_ms = deployed.pinned, deployed.keep_ms
        return entry

    def _curve(self, layers: tuple[LayerProfile, ...], links: HostLinks) -> ColdCurve:
        """One for all models of equal layers."""
        found = self._curves.get((layers, links))
        if found is None:
            found = ColdCurve(self._system.cold.cold_start, layers, links)
            self._curves[layers, links] = found
        return found

    def forget(self, model: str) -> None:
        """The deployment is gone."""
        self._rates.pop(model, None)

    def arrived(self, model: str, now_ms: float) -> None:
        """A request came for a model that is known."""
        self._rates[model].arrived(now_ms)


def _too_large(needed_bytes: int, budget_bytes: int) -> str:
    return (
        f"its weights take {needed_bytes / 1e6:.1f} MB, and the memory for weights is "
        f"{budget_bytes / 1e6:.1f} MB: give it more (--memory)"
    )
