"""More models than memory: what is kept of each, and a bound on cold requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf, isfinite
from typing import Final

import numpy as np
import numpy.typing as npt

from interlace.core.hardware import Fleet, Gpu
from interlace.core.loading import HostLinks
from interlace.core.plan import Demand, Plan, as_rate_rps
from interlace.core.profile import LayerProfile, Profile
from interlace.core.tables import counted
from interlace.core.user_errors import UserError
from interlace.perf.cold_start import reads_too_long
from interlace.planning.memory_trial import ColdTrial, MemoryTrial, try_memory, with_memory
from interlace.policy.base import System
from interlace.policy.cold_curve import ColdCurve, ColdPoint
from interlace.policy.cold_starts.frontier import lasting
from interlace.policy.residency import Residency, residency

_MORE_BYTES: Final = 10**9


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """One model: ``kept`` of its weights stays, by the rates; ``trial`` is what it then saw."""

    model: str
    rate_rps: float
    slo_ms: float
    weights_bytes: int
    warm_ms: float
    whole_ms: float
    kept: ColdPoint
    promised: float  #: the part of its requests that is to be in time
    trial: ColdTrial | None = None

    @property
    def resident(self) -> bool:
        """Whether nothing is copied for a request."""
        return self.kept.copied_bytes == 0

    @property
    def whole(self) -> bool:
        """Whether all weights stay: the others may be read in the host's memory."""
        return self.kept.kept_bytes >= self.weights_bytes

    def broken(self) -> str:
        """How far the trial fell short of the promise, if it surely did."""
        if self.trial is None:
            return ""
        low, high = self.trial.interval
        if high >= self.promised:
            return ""
        return (
            f"not kept: {self.model}: {100 * self.trial.attainment:.2f} % in time "
            f"({100 * low:.2f} to {100 * high:.2f}), {100 * self.promised:g} % promised"
        )


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What is kept of each model in ``memory_bytes``, of all accelerators together.

    ``room_bytes`` of it is for models that are being loaded, one on each accelerator: the most that
    one copies. ``more_ms_per_s`` is what a GB more would save. ``trials`` are with the memory that
    there is, and with a GB more; none before it was tried.
    """

    memory_bytes: int
    room_bytes: int
    models: tuple[ModelMemory, ...]
    residency: Residency
    more_ms_per_s: float
    bound: MemoryBound
    without_layers: tuple[str, ...] = ()  #: models that count as resident, beside this memory
    trials: tuple[MemoryTrial, ...] = ()

    @property
    def broken(self) -> tuple[str, ...]:
        """Of each model that the trial surely kept less of than promised, by how much."""
        return tuple(text for one in self.models if (text := one.broken()))

    def sentences(self) -> list[str]:
        """What the table does not say."""
        whole = sum(one.whole for one in self.models)
        in_place = sum(one.resident and not one.whole for one in self.models)
        cold = sum(one.rate_rps for one in self.models if not one.resident)
        rate = sum(one.rate_rps for one in self.models)
        saved, bound = self.residency.saved_ms_per_s, self.residency.bound_ms_per_s
        said = [
            f"{self.memory_bytes / 1e6:.0f} MB: {self.residency.kept_bytes / 1e6:.0f} kept, "
            f"{self.room_bytes / 1e6:.0f} for a model that is being loaded",
            f"{whole} of {counted(len(self.models), 'model')} stay whole"
            + (f"; {in_place} read the other weights in the host's memory" if in_place else "")
            + (
                f"; {cold:.3g} of {rate:.3g} requests/s ask for models that copy weights first, "
                "unless they came lately"
                if cold
                else ""
            ),
            f"keeping spares requests and the link {saved:,.0f} ms a second, no choice more than "
            f"{bound:,.0f}; 1 GB more would spare {self.more_ms_per_s:,.0f}",
        ]
        if self.without_layers:
            said.append(
                f"no layers are known of {', '.join(self.without_layers)} (interlace profile "
                "--layers): resident, beside this memory"
            )
        said += [one.sentence() for one in self.trials]
        return [*said, *self.broken, self.bound.sentence()]


@dataclass(frozen=True, slots=True)
class LayeredModels:
    """What is asked of models, and the cold curves of those whose layers are known."""

    demand: tuple[Demand, ...]
    profiles: Mapping[str, Profile]
    curves: Mapping[str, tuple[ColdPoint, ...]]


def layered_models(
    demand: Sequence[Demand], profiles: Mapping[str, Profile], gpu: Gpu
) -> LayeredModels:
    """These models, all asked once a second where no rate is known: what no plan is needed for.

    Raises:
        UserError: the layers of no model were measured, or one does not fit.
    """
    curves = _cold_curves(
        [one for one in demand if (known := profiles.get(one.model)) and known.layers],
        profiles,
        gpu,
    )
    if not curves:
        said = f"no layers are known of {', '.join(one.model for one in demand)}"
        raise UserError(f"{said}; first: interlace profile --layers")
    for model, curve in curves.items():
        _fits(model, profiles[model], curve, gpu)
    return LayeredModels(tuple(_asked_alike(demand)), profiles, curves)


def memory_plan(asked: LayeredModels, fleet: Fleet) -> MemoryPlan:
    """What to keep of these models.

    Times are of one row with a whole accelerator and an idle link. All are alike; which of them a
    model is on is left open.
    """
    profiles, curves = asked.profiles, asked.curves
    demand = [one for one in asked.demand if one.model in curves]
    links, count = fleet.gpus[0].links, len(fleet.gpus)
    budget_bytes = fleet.gpus[0].weights_bytes
    room_bytes = max(curve[0].copied_bytes for curve in curves.values())
    rates = {one.model: one.rows_per_s for one in demand}
    left_bytes = count * (budget_bytes - room_bytes)
    kept = residency(curves, rates, left_bytes)
    more = residency(curves, rates, left_bytes + _MORE_BYTES)
    models = tuple(
        ModelMemory(
            one.model,
            rates[one.model],
            one.slo_ms,
            sum(layer.weights_bytes for layer in profiles[one.model].layers),
            curves[one.model][-1].end_ms,
            curves[one.model][0].end_ms,
            kept.kept[one.model],
            one.attainment,
        )
        for one in demand
    )
    return MemoryPlan(
        count * budget_bytes,
        count * room_bytes,
        models,
        kept,
        more.saved_ms_per_s - kept.saved_ms_per_s,
        memory_bound(demand, {m: profiles[m].layers for m in curves}, links, count),
        tuple(one.model for one in asked.demand if one.model not in curves),
    )


def tried_memory(asked: LayeredModels, fleet: Fleet, plan: Plan, system: System) -> MemoryPlan:
    """The same, with the cold rate and p99 that the engine had by ``plan``; also with a GB more."""
    found = memory_plan(asked, fleet)
    trials = tuple(
        try_memory(asked.demand, asked.profiles, one, plan, system)
        for one in (fleet, with_memory(fleet, _MORE_BYTES))
    )
    seen = trials[0].models
    models = tuple(replace(one, trial=seen.get(one.model)) for one in found.models)
    return replace(found, models=models, trials=trials)


def _fits(name: str, profile: Profile, curve: Sequence[ColdPoint], gpu: Gpu) -> None:
    """What cores read in a file has to be in memory meanwhile, as what is copied."""
    every_bytes = sum(layer.weights_bytes for layer in profile.layers)
    needed_bytes = every_bytes if gpu.links.takes_cores else curve[0].copied_bytes
    if needed_bytes > gpu.weights_bytes:
        raise UserError(
            f"{name} needs {needed_bytes / 1e6:.0f} MB of weights to run, and the memory is "
            f"{gpu.weights_bytes / 1e6:.0f} MB; expected at least as much"
        )


def _asked_alike(demand: Sequence[Demand]) -> list[Demand]:
    """The demand; once a second each where no rate is known at all."""
    known = any(one.rows_per_s for one in demand)
    return [one if known else replace(one, rows_per_s=1.0) for one in demand]


def _cold_curves(
    demand: Sequence[Demand], profiles: Mapping[str, Profile], gpu: Gpu
) -> dict[str, tuple[ColdPoint, ...]]:
    found = {one.model: profiles[one.model] for one in demand}
    by_layers = {
        layers: ColdCurve(lasting, layers, gpu.links).points
        for layers in {one.layers for one in found.values()}
    }
    return {model: by_layers[one.layers] for model, one in found.items()}


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
