"""Every figure of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from interlace.core.request import Outcome
from interlace.sim.record import RunRecord, ServedRequest
from interlace.sim.report.apps import AppFigures, app_figures
from interlace.sim.report.fairness import jain, service_gap_ms, service_ms
from interlace.sim.report.latency import Latency, latency
from interlace.sim.report.usage import mean_gpus, utilisation


@dataclass(frozen=True, slots=True)
class ModelReport:
    """One model's run. ``goodput_rps`` counts replies in time; whatever else became of a request,
    a refusal or a drop included, is a violation. ``attainment`` is the part in time. ``batches``
    counts executions by their rows; ``mean_batch`` is their mean."""

    requests: int
    offered_rps: float
    goodput_rps: float
    attainment: float
    outcomes: Mapping[str, int]
    latency: Latency
    p99_over_slo: float
    mean_batch: float
    batches: Mapping[int, int]
    service_ms: float


@dataclass(frozen=True, slots=True)
class Report:
    """A whole run: totals, each model, each accelerator, each app.

    ``jain_service`` is over accelerator time, ``jain_attainment`` over attainment.
    """

    seconds: float
    requests: int
    offered_rps: float
    goodput_rps: float
    attainment: float
    worst_attainment: float
    outcomes: Mapping[str, int]
    latency: Latency
    models: Mapping[str, ModelReport]
    utilisation: Mapping[str, float]
    mean_utilisation: float
    mean_gpus: float
    jain_service: float
    jain_attainment: float
    service_gap_ms: float
    apps: Mapping[str, AppFigures]  #: requests of several models, where the run had any

    def plain(self) -> dict[str, object]:
        """The report as JSON has it: keys are the names of the fields."""
        return asdict(self)


def report(record: RunRecord) -> Report:
    """The figures of one run."""
    seconds = (record.until_ms - record.from_ms) / 1000.0
    by_model: dict[str, list[ServedRequest]] = {}
    for one in record.served:
        by_model.setdefault(one.model, []).append(one)
    service, batches = service_ms(record.executions), _batches(record)
    models = {
        name: _model(by_model[name], seconds, service.get(name, 0.0), batches.get(name, {}))
        for name in sorted(by_model)
    }
    used = utilisation(record)
    attainments = [one.attainment for one in models.values()]
    in_time = sum(one.outcome is Outcome.OK for one in record.served)
    count = len(record.served)
    return Report(
        seconds=seconds,
        requests=count,
        offered_rps=count / seconds,
        goodput_rps=in_time / seconds,
        attainment=in_time / count if count else 1.0,
        worst_attainment=min(attainments, default=1.0),
        outcomes=_outcomes(record.served),
        latency=latency(record.served),
        models=models,
        utilisation=used,
        mean_utilisation=sum(used.values()) / len(used) if used else 0.0,
        mean_gpus=mean_gpus(record),
        jain_service=jain([one.service_ms for one in models.values()]),
        jain_attainment=jain(attainments),
        service_gap_ms=service_gap_ms(record),
        apps=app_figures(record),
    )


def _model(
    served: Sequence[ServedRequest], seconds: float, service: float, batches: Mapping[int, int]
) -> ModelReport:
    in_time = sum(one.outcome is Outcome.OK for one in served)
    taken = latency(served)
    slo_ms = max(one.deadline_ms - one.arrived_ms for one in served)
    executions = sum(batches.values())
    return ModelReport(
        requests=len(served),
        offered_rps=len(served) / seconds,
        goodput_rps=in_time / seconds,
        attainment=in_time / len(served),
        outcomes=_outcomes(served),
        latency=taken,
        p99_over_slo=taken.p99_ms / slo_ms,
        mean_batch=sum(r * n for r, n in batches.items()) / executions if executions else 0.0,
        batches=batches,
        service_ms=service,
    )


def _outcomes(served: Sequence[ServedRequest]) -> dict[str, int]:
    counts = Counter(one.outcome.value for one in served)
    return {outcome.value: counts[outcome.value] for outcome in Outcome}


def _batches(record: RunRecord) -> dict[str, dict[int, int]]:
    """Executions of each model that began in the measured span, by their rows."""
    counts: dict[str, Counter[int]] = {}
    for run in record.executions:
        if record.from_ms <= run.started_ms < record.until_ms:
            counts.setdefault(run.model, Counter())[run.rows] += 1
    return {model: dict(sorted(found.items())) for model, found in counts.items()}
