"""The models that are served, by public name and version, with what each has done so far."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final

from interlace.core.deployment_key import DeploymentKey
from interlace.core.errors import Reason, ServeError
from interlace.core.model import Model
from interlace.core.request import Outcome, Reply

#: Upper bounds of the latency histograms, in us.
BUCKETS_US: Final = (
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000,
    100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000,
)  # fmt: skip
_FIRST_US: Final = 100.0  #: the first of them, where most times of the parts of a request fall

_OK, _LATE = Outcome.OK, Outcome.LATE
_FAILURES: Final = (Outcome.REFUSED, Outcome.EXPIRED, Outcome.CANCELLED, Outcome.FAILED)


@dataclass(slots=True)
class Duration:
    """A count, a sum in us, and a true histogram."""

    count: int = 0
    sum_us: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_US) + 1))

    def add(self, value_us: float) -> None:
        self.count += 1
        self.sum_us += value_us
        if value_us <= _FIRST_US:
            self.buckets[0] += 1
        else:
            self.buckets[bisect_left(BUCKETS_US, value_us)] += 1


#: The weight of the newest stream in the expected time after a first response.
_NEWEST: Final = 0.1


@dataclass(slots=True)
class PromisedDuration:
    """Durations, and how many kept or missed their SLO where there is one."""

    durations: Duration = field(default_factory=Duration)
    within: int = 0
    missed: int = 0

    def add(self, value_ms: float, slo_ms: float | None) -> None:
        self.durations.add(value_ms * 1000.0)
        if slo_ms is not None:
            self.missed += int(value_ms > slo_ms)
            self.within += int(value_ms <= slo_ms)


@dataclass(slots=True)
class StreamStatistics:
    """Times of a decoupled model: to the first response, from one to the next.

    ``rest_ms`` is the expected time from the first response to the last.
    """

    first: PromisedDuration = field(default_factory=PromisedDuration)
    gap: PromisedDuration = field(default_factory=PromisedDuration)
    rest_ms: float = 0.0

    def ended(self, rest_ms: float) -> None:
        """Enter how long a stream took after its first response."""
        self.rest_ms += _NEWEST * (rest_ms - self.rest_ms) if self.rest_ms else rest_ms


@dataclass(slots=True)
class StageTotals:
    """Sums over the requests that one stage of an app answered. Times in ms."""

    count: int = 0
    wait_ms: float = 0.0
    run_ms: float = 0.0
    slack_ms: float = 0.0


@dataclass(slots=True)
class ModelStatistics:
    """Counts of one deployed name and version since it was first served."""

    success: int = 0
    rows: int = 0
    executions: int = 0
    last_ms: float = 0.0
    within_slo: int = 0
    failures: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(_FAILURES, 0))
    refusals: dict[str, int] = field(default_factory=dict)
    pending: int = 0
    request: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    fail_us: float = 0.0
    batches: dict[int, tuple[int, float, float, float]] = field(default_factory=dict)
    stages: dict[str, StageTotals] = field(default_factory=dict)  #: of an app, by name
    streams: StreamStatistics = field(default_factory=StreamStatistics)

    @property
    def outcomes(self) -> Mapping[Outcome, int]:
        """How many calls ended in each way."""
        late = self.success - self.within_slo
        return {_OK: self.within_slo, _LATE: late, **self.failures}

    def record(self, reply: Reply, now_ms: float) -> None:
        """Enter one reply that ended at ``now_ms`` on the runtime's clock."""
        outcome, request, timing = reply.outcome, reply.request, reply.timing
        total_us = (now_ms - request.arrived_ms) * 1000.0
        for stage in reply.stages:
            totals = self.stages.setdefault(stage.stage, StageTotals())
            totals.count += 1
            totals.wait_ms += stage.wait_ms
            totals.run_ms += stage.run_ms
            totals.slack_ms += stage.slack_ms
        if outcome is _OK:
            self.within_slo += 1
        elif outcome is not _LATE:
            self._record_failure(reply, total_us)
            return
        self.success += 1
        self.rows += request.rows
        self.last_ms = now_ms
        self.request.add(total_us)
        self.queue.add(timing.queue_ms * 1000.0)
        self.compute_input.add(timing.input_ms * 1000.0)
        self.compute_infer.add(timing.infer_ms * 1000.0)
        self.compute_output.add(timing.output_ms * 1000.0)

    def refused(self, error: ServeError) -> None:
        """Enter a call that never became a request: malformed, or not taken."""
        self.failures[Outcome.REFUSED] += 1
        self._count(error)

    def executed(self, rows: int, input_ms: float, infer_ms: float, output_ms: float) -> None:
        """Enter one execution of a batch of ``rows``."""
        self.executions += 1
        n, i, c, o = self.batches.get(rows, (0, 0.0, 0.0, 0.0))
        self.batches[rows] = (n + 1, i + input_ms, c + infer_ms, o + output_ms)

    def _record_failure(self, reply: Reply, total_us: float) -> None:
        self.failures[reply.outcome] += 1
        self.fail_us += total_us
        if reply.error is not None:
            self._count(reply.error)

    def _count(self, error: ServeError) -> None:
        reason = error.reason.value
        self.refusals[reason] = self.refusals.get(reason, 0) + 1


#: A name longer than this is cut in error texts.
NAME_CHARS: Final = 128


@dataclass(slots=True)
class ServedModel:
    """One deployed version: the model, and the statistics of its replies.

    ``config`` is the JSON of Triton's ModelConfig.
    """

    model: Model
    statistics: ModelStatistics = field(default_factory=ModelStatistics)
    config: Mapping[str, object] = field(default_factory=dict)
    ready: bool = True  #: false once it was set aside

    @property
    def key(self) -> str:
        return self.model.key


class ModelTable:
    """Public names to deployments. Replacing an entry is the switch of a reload."""

    def __init__(self) -> None:
        self._versions: dict[str, dict[str, ServedModel]] = {}
        self._found: dict[tuple[str, str], ServedModel] = {}  # resolved since the last change
        #: names that are known here, but are served only on an order to this node
        self.at_hand: Container[str] = ()
        #: why a model of the repository is not served, by name; empty for others
        self.why_missing: Callable[[str], str] = lambda name: ""

    def publish(self, served: ServedModel) -> None:
        """Route a name and version to this deployment from now on."""
        name, version = served.model.name, str(served.model.version)
        before = self._versions.setdefault(name, {}).get(version)
        if before is not None:
            served.statistics = before.statistics  # counters go on over a reload
        self._versions[name][version] = served
        self._found.clear()

    def withdraw(self, key: str) -> None:
        """Stop routing to that deployment; unknown keys pass."""
        for name, versions in list(self._versions.items()):
            for version, served in list(versions.items()):
                if served.key == key:
                    del versions[version]
            if not versions:
                del self._versions[name]
        self._found.clear()

    def resolve(self, name: str, version: str = "") -> ServedModel:
        """The deployment of a name; the newest version if none is asked for.

        Raises:
            ServeError: unknown name or version, or it is not served here at present.
        """
        found = self._found.get((name, version))
        if found is None:
            found = self._found[(name, version)] = self._look_up(name, version)
        return found

    def versions(self, name: str) -> list[str]:
        """The served versions of a name, oldest first; empty if unknown."""
        return sorted(self._versions.get(name, ()), key=int)

    def statistics(self, model: str) -> ModelStatistics | None:
        """Where a deployment is accounted for, also after a reload; ``None`` once withdrawn."""
        key = DeploymentKey.parse(model)
        served = self._versions.get(key.name, {}).get(str(key.version))
        return None if served is None else served.statistics

    def record(self, model: str, reply: Reply, now_ms: float) -> None:
        """Enter a reply of a deployment that no client asked directly."""
        if (statistics := self.statistics(model)) is not None:
            statistics.record(reply, now_ms)

    def all(self) -> list[ServedModel]:
        """Every deployment, by name and version."""
        return [
            served
            for _, versions in sorted(self._versions.items())
            for _, served in sorted(versions.items(), key=lambda item: int(item[0]))
        ]

    def _look_up(self, name: str, version: str) -> ServedModel:
        versions = self._versions.get(name)
        if versions is None and name in self.at_hand:
            raise ServeError(
                Reason.NOT_READY,
                f"model '{name}' is at hand, but this node is not told to serve it at present: "
                "routers ask those that are",
            )
        if versions is None:
            if why := self.why_missing(name):
                told = f"Request for unknown model: '{name}' is not served: {why}"
                raise ServeError(Reason.UNKNOWN_MODEL, told)
            short = name[:NAME_CHARS]
            near = get_close_matches(short, self._versions, n=3)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise ServeError(
                Reason.UNKNOWN_MODEL, f"Request for unknown model: '{short}' is not found{hint}"
            )
        if not version:
            return versions[max(versions, key=int)]
        if version not in versions:
            known = ", ".join(sorted(versions, key=int))
            raise ServeError(
                Reason.UNKNOWN_MODEL,
                f"Request for unknown model: '{name}' version {version[:NAME_CHARS]} is not found; "
                f"served: {known}",
            )
        return versions[version]
