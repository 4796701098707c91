"""Figures of a run: latency, goodput, fairness, apps, and use of accelerators."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from interlace.core.request import Outcome
from interlace.sim.record import AppServed, Execution, RunRecord, ServedRequest

#: Outcomes that have a latency: the model's answer came, in time or not.
ANSWERED: Final = (Outcome.OK, Outcome.LATE)


@dataclass(frozen=True, slots=True)
class Latency:
    """Of answered requests, from arrival to answer, in ms; NaN if nothing was answered.

    ``queue_ms`` and ``compute_ms`` are means of the time before and after the batch began.
    """

    p50_ms: float
    p95_ms: float
    p99_ms: float
    p999_ms: float
    queue_ms: float
    compute_ms: float


def latency(served: Sequence[ServedRequest]) -> Latency:
    """Quantiles over the answered ones among these; the others have no latency."""
    answered = [one for one in served if one.outcome in ANSWERED]
    if not answered:
        return Latency(*[float("nan")] * 6)
    taken = np.array([one.answered_ms - one.arrived_ms for one in answered])
    queued = np.array([one.started_ms - one.arrived_ms for one in answered])
    p50, p95, p99, p999 = np.percentile(taken, (50, 95, 99, 99.9)).tolist()
    waited = float(np.mean(queued))
    return Latency(p50, p95, p99, p999, waited, float(np.mean(taken)) - waited)


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


@dataclass(frozen=True, slots=True)
class AppFigures:
    """One app's run. Goodput counts the app's requests whose last answer was in time; every other
    outcome is a violation. Latency is from arrival to last answer, NaN if none was answered."""

    requests: int
    goodput_rps: float
    attainment: float
    outcomes: Mapping[str, int]
    p50_ms: float
    p99_ms: float


def app_figures(record: RunRecord) -> dict[str, AppFigures]:
    """The figures of every app in a record, by name."""
    by_app: dict[str, list[AppServed]] = {}
    for one in record.apps:
        by_app.setdefault(one.app, []).append(one)
    seconds = (record.until_ms - record.from_ms) / 1000.0
    return {name: _figures(by_app[name], seconds) for name in sorted(by_app)}


def _figures(served: list[AppServed], seconds: float) -> AppFigures:
    counts = Counter(one.outcome for one in served)
    taken = [one.answered_ms - one.arrived_ms for one in served if one.outcome in ANSWERED]
    p50_ms, p99_ms = np.percentile(taken or [np.nan], [50, 99]).tolist()
    return AppFigures(
        len(served),
        counts[Outcome.OK] / seconds,
        counts[Outcome.OK] / len(served),
        {outcome.value: count for outcome, count in counts.items()},
        p50_ms,
        p99_ms,
    )


def jain(values: Sequence[float]) -> float:
    """Jain's index, (sum x)^2 / (n sum x^2): 1 if all are equal, 1/n if one has everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares > 0 else 1.0


def service_ms(executions: Sequence[Execution]) -> Mapping[str, float]:
    """Accelerator time of each model: of every run, its share of the time it took."""
    total: dict[str, float] = defaultdict(float)
    for run in executions:
        total[run.model] += (run.ended_ms - run.started_ms) * run.share_pct / 100.0
    return total


def service_gap_ms(record: RunRecord) -> float:
    """The most that one model got beyond another while both had something waiting.

    VTC's measure (frontier of fairness in serving): over any stretch in which two models are both
    backlogged, the difference of what they are served. Service is entered when a run begins.
    """
    waiting = _changes(record)
    models = sorted({one.model for one in record.served})
    worst = 0.0
    for index, one in enumerate(models):
        for other in models[index + 1 :]:
            worst = max(worst, _gap_ms(one, other, record.executions, waiting))
    return worst


#: At a time, a model's number of waiting requests changes by so much.
_Change = tuple[float, int]


def _changes(record: RunRecord) -> Mapping[str, list[_Change]]:
    changes: dict[str, list[_Change]] = defaultdict(list)
    for one in record.served:
        leaves_ms = one.started_ms if one.partition else one.answered_ms
        if leaves_ms > one.arrived_ms:
            changes[one.model] += [(one.arrived_ms, 1), (leaves_ms, -1)]
    return changes


def _gap_ms(
    one: str, other: str, executions: Sequence[Execution], waiting: Mapping[str, list[_Change]]
) -> float:
    """The widest swing of the difference in service within stretches where both wait."""
    steps: list[tuple[float, int, str, float]] = []
    for name in (one, other):
        steps += [(at_ms, 0, name, float(change)) for at_ms, change in waiting.get(name, ())]
    for run in executions:
        if run.model in (one, other):
            work_ms = (run.ended_ms - run.started_ms) * run.share_pct / 100.0
            steps.append((run.started_ms, 1, run.model, work_ms))
    steps.sort(key=lambda step: step[:2])
    counts = {one: 0.0, other: 0.0}
    ahead = low = high = worst = 0.0
    for _, kind, name, value in steps:
        if kind == 0:
            both = min(counts.values()) > 0
            counts[name] += value
            if not both and min(counts.values()) > 0:
                ahead = low = high = 0.0
        elif min(counts.values()) > 0:
            ahead += value if name == one else -value
            low, high = min(low, ahead), max(high, ahead)
            worst = max(worst, high - low)
    return worst


def utilisation(record: RunRecord) -> Mapping[str, float]:
    """Part of each accelerator that ran something: share times time, within the measured span.

    Of overlapping partitions what runs together counts as what it asks for, at most 100 % at a
    time.
    """
    length_ms = record.until_ms - record.from_ms
    return {gpu: _busy_ms(record, gpu) / length_ms for gpu in record.gpus}


def _busy_ms(record: RunRecord, gpu: str) -> float:
    """Share-weighted busy time of one accelerator, in ms."""
    steps: list[tuple[float, int]] = []
    for run in record.executions:
        begin_ms, end_ms = max(run.started_ms, record.from_ms), min(run.ended_ms, record.until_ms)
        if run.gpu == gpu and end_ms > begin_ms:
            steps += [(begin_ms, run.share_pct), (end_ms, -run.share_pct)]
    steps.sort()
    total = since_ms = 0.0
    running_pct = 0
    for at_ms, change_pct in steps:
        total += min(running_pct, 100) / 100.0 * (at_ms - since_ms)
        since_ms, running_pct = at_ms, running_pct + change_pct
    return total


def gpus_over_time(record: RunRecord) -> Sequence[tuple[float, int]]:
    """Steps (ms from the start of the measured span, accelerators that hold a partition)."""
    changes: list[tuple[float, int, str]] = []
    for span in record.spans:
        changes += [(span.carved_ms, 1, span.gpu), (span.released_ms, -1, span.gpu)]
    held: dict[str, int] = {}
    steps: list[tuple[float, int]] = []
    for at_ms, change, gpu in sorted(changes):
        if at_ms >= record.until_ms:
            break
        held[gpu] = held.get(gpu, 0) + change
        count = sum(1 for partitions in held.values() if partitions > 0)
        from_start_ms = max(0.0, at_ms - record.from_ms)
        if steps and steps[-1][0] == from_start_ms:
            steps.pop()
        if not steps or steps[-1][1] != count:
            steps.append((from_start_ms, count))
    return steps


def mean_gpus(record: RunRecord) -> float:
    """Accelerators that held a partition, on average over the measured span."""
    length_ms = record.until_ms - record.from_ms
    steps = [*gpus_over_time(record), (length_ms, 0)]
    return sum(n * (later - at) for (at, n), (later, _) in pairwise(steps)) / length_ms
