"""More models than memory: what is kept of each, what a request of the others waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Final

from interlace.core.loading import link_of
from interlace.core.plan import Demand
from interlace.core.profile import Profile
from interlace.core.user_errors import UserError
from interlace.policy.cold_curve import ColdCurve, ColdPoint
from interlace.policy.cold_starts.frontier import lasting
from interlace.policy.residency import Residency, least_bytes, residency

_MORE_BYTES: Final = 10**9


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """One model: ``kept`` of its weights stays; ``least_bytes`` must, for its SLO."""

    model: str
    rate_rps: float
    slo_ms: float
    weights_bytes: int
    warm_ms: float
    whole_ms: float
    kept: ColdPoint
    least_bytes: float

    @property
    def resident(self) -> bool:
        """Whether nothing is copied for a request."""
        return self.kept.copied_bytes == 0


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What is kept of each model in ``memory_bytes``.

    ``room_bytes`` of it is for a model that is being loaded: the most that one copies.
    ``more_ms_per_s`` is what a GB more would save.
    """

    memory_bytes: int
    room_bytes: int
    models: tuple[ModelMemory, ...]
    residency: Residency
    more_ms_per_s: float

    def sentences(self) -> list[str]:
        """What the table does not say."""
        cold = sum(one.rate_rps for one in self.models if not one.resident)
        rate = sum(one.rate_rps for one in self.models)
        saved, bound = self.residency.saved_ms_per_s, self.residency.bound_ms_per_s
        said = [
            f"{self.memory_bytes / 1e6:.0f} MB: {self.residency.kept_bytes / 1e6:.0f} kept, "
            f"{self.room_bytes / 1e6:.0f} for a model that is being loaded",
            f"{cold:.3g} of {rate:.3g} requests/s copy weights first; keeping spares them and the "
            f"link {saved:.3g} ms a second, no choice more than {bound:.3g}",
            f"1 GB more would spare {self.more_ms_per_s:.3g} ms a second",
        ]
        least = sum(one.least_bytes for one in self.models)
        late = [one.model for one in self.models if not isfinite(one.least_bytes)]
        if late:
            said.append(f"even with all weights kept too slow for the SLO: {', '.join(late)}")
        elif least:
            said.append(f"no residency keeps these SLOs with less than {least / 1e6:.0f} MB")
        else:
            said.append("every SLO is longer than its model's cold start")
        return said


def memory_plan(
    demand: Sequence[Demand],
    profiles: Mapping[str, Profile],
    names: Mapping[str, str],
    memory_bytes: int,
) -> MemoryPlan:
    """What to keep of these models; where no rate is known, all are taken to be asked alike.

    Times are of one row with the whole accelerator and an idle link. Where nothing of a model is
    kept, each of its requests is taken to be a cold start.

    Raises:
        UserError: the layers of a model were not measured, or one does not fit.
    """
    curves = _cold_curves(demand, profiles, names)
    room_bytes = max(curve[0].copied_bytes for curve in curves.values())
    if room_bytes > memory_bytes:
        largest = max(curves, key=lambda model: curves[model][0].copied_bytes)
        raise UserError(
            f"{names[largest]} copies {room_bytes / 1e6:.0f} MB to run, and the memory is "
            f"{memory_bytes / 1e6:.0f} MB; expected at least as much"
        )
    known = any(one.rows_per_s for one in demand)
    rates = {one.model: one.rows_per_s if known else 1.0 for one in demand}
    left_bytes = memory_bytes - room_bytes
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
            least_bytes(curves[one.model], one.slo_ms),
        )
        for one in demand
    )
    return MemoryPlan(
        memory_bytes, room_bytes, models, kept, more.saved_ms_per_s - kept.saved_ms_per_s
    )


def _cold_curves(
    demand: Sequence[Demand], profiles: Mapping[str, Profile], names: Mapping[str, str]
) -> dict[str, tuple[ColdPoint, ...]]:
    found = {one.model: profiles[one.model] for one in demand}
    unknown = [names[model] for model, one in found.items() if not one.layers]
    if unknown:
        raise UserError(
            f"no layers are known of {', '.join(unknown)}; first: interlace profile --layers"
        )
    return {
        model: ColdCurve(lasting, one.layers, link_of(one.gpu_kind)).points
        for model, one in found.items()
    }
