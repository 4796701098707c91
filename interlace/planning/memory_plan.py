"""More models than memory: what is kept of each, what a request of the others waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profile
from interlace.core.tables import counted
from interlace.core.user_errors import UserError
from interlace.planning.memory_bound import MemoryBound, memory_bound
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
    names: Mapping[str, str]
    curves: Mapping[str, tuple[ColdPoint, ...]]


def layered_models(
    demand: Sequence[Demand], profiles: Mapping[str, Profile], names: Mapping[str, str], gpu: Gpu
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
        said = f"no layers are known of {', '.join(names[one.model] for one in demand)}"
        raise UserError(f"{said}; first: interlace profile --layers")
    for model, curve in curves.items():
        _fits(names[model], profiles[model], curve, gpu)
    return LayeredModels(tuple(_asked_alike(demand)), profiles, names, curves)


def memory_plan(asked: LayeredModels, fleet: Fleet) -> MemoryPlan:
    """What to keep of these models.

    Times are of one row with a whole accelerator and an idle link. All are alike; which of them a
    model is on is left open.
    """
    profiles, names, curves = asked.profiles, asked.names, asked.curves
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
            names[one.model],
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
        tuple(names[one.model] for one in asked.demand if one.model not in curves),
    )


def tried_memory(asked: LayeredModels, fleet: Fleet, plan: Plan, system: System) -> MemoryPlan:
    """The same, with the cold rate and p99 that the engine had by ``plan``; also with a GB more."""
    found = memory_plan(asked, fleet)
    trials = tuple(
        try_memory(asked.demand, asked.profiles, one, plan, system)
        for one in (fleet, with_memory(fleet, _MORE_BYTES))
    )
    seen = {asked.names[model]: one for model, one in trials[0].models.items()}
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
