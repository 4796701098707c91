"""What the engine predicts of each model now: read by whoever chooses between several engines."""

from __future__ import annotations

from math import inf
from typing import Final

from msgspec import Struct

from interlace.core.request import Request
from interlace.engine.arrival_rates import ArrivalRates
from interlace.engine.plan_controller import PlanController
from interlace.engine.request_scheduler import RequestScheduler
from interlace.engine.state import DeployedModel, EngineState
from interlace.engine.view import GpuView
from interlace.policy.admission import DeadlineAdmission, row_ms

#: How waits are predicted, whatever a system admits by.
PREDICTION: Final = DeadlineAdmission()
#: An id above all: of equal deadlines who comes now comes last.
_LAST_ID: Final = 1 << 62


class ModelOutlook(Struct, frozen=True):
    """One model that has a host.

    A request of one row, with the model's SLO, that came now would begin ``wait_ms`` later (what
    the admission keeps free for errors included) and run for ``run_ms``. Each row that comes before
    it adds ``row_ms``. ``rows_per_s`` arrive; for ``planned_rows_per_s`` there is a place. Of the
    wait ``cold_ms`` are for weights that are not there.
    """

    waiting_rows: int
    wait_ms: float
    run_ms: float
    row_ms: float
    rows_per_s: float
    planned_rows_per_s: float
    slo_ms: float
    cold_ms: float = 0.0


class EngineOutlook(Struct, frozen=True):
    """Models that are served from some partition, by deployment key, and the plan behind them.

    ``settled``: every model is loaded in each of its partitions, and no other plan is waited for.
    ``headroom`` as in ``Plan``.
    """

    settled: bool
    headroom: float | None
    models: dict[str, ModelOutlook]


def predict(
    state: EngineState,
    rates: ArrivalRates,
    scheduler: RequestScheduler,
    plans: PlanController,
    now_ms: float,
) -> EngineOutlook:
    """The outlook of all that is served now."""
    found: dict[str, ModelOutlook] = {}
    for key, deployed in state.models.items():
        if deployed.hosts and deployed.quarantine_reason is None and not deployed.leaving:
            gpu = state.fleet.gpu(deployed.hosts[0].gpu)
            view = GpuView(state, rates, scheduler.staging, gpu, True)
            ready_ms = now_ms
            if deployed.weights:
                ready_ms = max(now_ms, scheduler.fetching.earliest_ms(deployed, now_ms))
            found[key] = _outlook(key, deployed, view, now_ms, ready_ms - now_ms)
    return EngineOutlook(state.settled and not plans.asking, state.target.headroom, found)


def _outlook(
    key: str, deployed: DeployedModel, view: GpuView, now_ms: float, cold_ms: float
) -> ModelOutlook:
    slo_ms = deployed.demand.slo_ms
    asked = Request(_LAST_ID, key, now_ms, now_ms + slo_ms)
    turns = [(slot, host) for host in deployed.hosts for slot in host.slots if slot.model == key]
    run_ms = min(deployed.latency_ms(1, host.share_pct) for host in deployed.hosts)
    end_ms = PREDICTION.end_ms(asked, view, now_ms)
    return ModelOutlook(
        deployed.queue.rows + sum(pool.waiting_rows for pool in deployed.pools.values()),
        max(end_ms - now_ms - run_ms, cold_ms),
        run_ms,
        min((row_ms(slot, host, view) for slot, host in turns), default=inf),
        view.rows_per_s(key),
        sum(slot.rows_per_s for slot, _ in turns),
        slo_ms,
        cold_ms,
    )
