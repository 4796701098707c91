"""What apps ask of their models: rates of all stages, and the SLO divided among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from interlace.apps.budgets import StageBudget, row_latencies_ms, stage_budgets
from interlace.apps.graph import App
from interlace.core.hardware import Gpu
from interlace.core.plan import Demand, as_rows_per_s
from interlace.core.profile import Profiles
from interlace.packing.bounds import lower_bound
from interlace.sim.apps import SimulatedApp

#: How often stages are priced anew by the duals of the demand that they make.
_ROUNDS: Final = 3

Budgets = Mapping[str, Sequence[StageBudget]]


@dataclass(frozen=True, slots=True)
class AppLoad:
    """An app and what is asked of it; ``split`` is a rule of ``interlace.apps.budgets.SPLITS``."""

    app: App
    rate_rps: float
    slo_ms: float
    split: str = "exact"
    cv: float = 1.0

    @property
    def simulated(self) -> SimulatedApp:
        """The app as simulations play it."""
        return SimulatedApp(self.app.without_tensors(), self.slo_ms)

    def asked(self, rate_rps: float | None, slo_ms: float | None) -> AppLoad:
        """The same with another rate and SLO; ``None`` keeps one."""
        rate_rps = self.rate_rps if rate_rps is None else rate_rps
        return replace(self, rate_rps=rate_rps, slo_ms=slo_ms or self.slo_ms)


def app_demand(
    direct: Sequence[Demand], apps: Mapping[str, AppLoad], gpu: Gpu, profiles: Profiles
) -> tuple[tuple[Demand, ...], Budgets]:
    """The demand of all models, with that of apps, and each app's budgets by stage.

    ``direct`` is asked of the models themselves; of one that only apps call at a rate of 0, with an
    infinite SLO. Stages of one model share its batches: it is planned for the sum of their rates,
    within the shortest budget.

    An exact split is made for costs by area. Then each model's costs are multiplied with the price
    that its rows have in the lower bound of that demand, over their area: the duals of the
    configuration program. The demand with the smallest bound is kept.
    """
    prices = dict.fromkeys(profiles, 1.0)
    best, least = _asked(direct, apps, profiles, prices), inf
    for _ in range(_ROUNDS if any(one.split == "exact" for one in apps.values()) else 1):
        demand, budgets = _asked(direct, apps, profiles, prices)
        bound = lower_bound([one for one in demand if one.rows_per_s > 0], gpu, profiles)
        if bound.excluded or bound.best.accelerators >= least:
            break
        best, least = (demand, budgets), bound.best.accelerators
        for stage in (one for stages in budgets.values() for one in stages):
            worth = bound.best.price.get(stage.model, 0.0) * stage.rows_per_s
            if worth > 0 and stage.cost not in (0.0, inf):
                prices[stage.model] = worth / stage.cost
    return best


def _asked(
    direct: Sequence[Demand],
    apps: Mapping[str, AppLoad],
    profiles: Profiles,
    prices: Mapping[str, float],
) -> tuple[tuple[Demand, ...], Budgets]:
    found = {one.model: one for one in direct}
    latencies_ms = {
        model: row_latencies_ms(profiles[model], found[model].max_batch)
        for one in apps.values()
        for model in one.app.members
    }
    budgets: dict[str, Sequence[StageBudget]] = {}
    for name, one in apps.items():
        priced = prices if one.split == "exact" else None
        args = one.app, latencies_ms, one.rate_rps, one.slo_ms, one.split, priced
        budgets[name] = stage_budgets(*args)
        for stage in budgets[name]:
            asked = found[stage.model]
            found[stage.model] = replace(
                asked,
                rows_per_s=asked.rows_per_s + as_rows_per_s(stage.rows_per_s),
                slo_ms=min(asked.slo_ms, stage.budget_ms),
            )
    return tuple(found.values()), budgets
