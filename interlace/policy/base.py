"""The six questions a serving system answers, and the read-only view the answers are given on."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from interlace.core.hardware import Fleet, Gpu
from interlace.core.loading import LoadPlan
from interlace.core.plan import Demand, ElasticBatching, Plan, Slot
from interlace.core.profile import Profile, Profiles
from interlace.core.request import Request


@dataclass(frozen=True, slots=True)
class Tally:
    """What a model has had on one accelerator: last start, and accelerator time so far, in ms."""

    last_start_ms: float = float("-inf")
    busy_ms: float = 0.0


class PartitionView(Protocol):
    """One partition at one instant."""

    @property
    def id(self) -> str: ...
    @property
    def share_pct(self) -> int: ...
    @property
    def slots(self) -> Sequence[Slot]:
        """Turns of the duty cycle whose model is loaded here, in plan order."""
        ...

    @property
    def accepting(self) -> bool: ...  #: ready, and not draining
    def takes(self, now_ms: float) -> bool:
        """Accepting, and idle or about to be: a batch may be given to it (``Gpu.ahead_ms``)."""
        ...

    @property
    def running(self) -> str | None: ...  #: the model whose batch runs now

    @property
    def rows_running(self) -> int: ...  #: rows of the running batch; 0 if nothing runs

    @property
    def round_ms(self) -> float:
        """The shortest round of batches that keeps up with the rates (``perf.pace.round_ms``)."""
        ...

    def behind_ms(self, ahead: str) -> Mapping[str, float]:
        """Who contends and has had less than ``ahead``, by how much: ``policy.fairness``."""
        ...

    def last_start_ms(self, model: str) -> float:
        """When the model's last batch here began; minus infinity if none did."""
        ...

    @property
    def free_at_ms(self) -> float:
        """When all that was given to it is predicted to end; a past time if nothing runs."""
        ...


class QueueView(Protocol):
    """One model's queue, earliest deadline first."""

    @property
    def rows(self) -> int: ...
    @property
    def head(self) -> Request | None: ...
    @property
    def tail_deadline_ms(self) -> float:
        """The latest deadline queued; infinite if nothing is."""
        ...

    @property
    def complete(self) -> bool:
        """True if what arrives later cannot join these rows: a ring of staged inputs ends here."""
        ...

    def deadline_ms(self, index: int) -> float:
        """The deadline of the request at that place, 0 for the head; infinite past the end."""
        ...

    def rows_before(self, request: Request) -> int:
        """Rows queued that are to be served before ``request``."""
        ...

    def batch_rows(self, limit: int) -> int:
        """Rows the next batch would hold: the head and what may join it, up to ``limit``."""
        ...


class View(Protocol):
    """One accelerator at one instant. Live and read-only; must not be kept after the call."""

    @property
    def gpu(self) -> Gpu: ...
    @property
    def partitions(self) -> Sequence[PartitionView]: ...
    @property
    def tallies(self) -> Mapping[str, Tally]: ...
    def queue(self, model: str) -> QueueView:
        """What can be launched: all that waits, or a row of staged inputs (E2bird section 5.1)."""
        ...

    def queued(self, partition: PartitionView) -> Sequence[Slot]:
        """Turns of a partition whose model may have something to launch: of many, few."""
        ...

    def waiting_rows(self, model: str) -> int:
        """Rows that wait here, whether or not they can be launched at this instant."""
        ...

    def elastic(self, model: str) -> ElasticBatching | None:
        """How the model's workers of several sizes are used, where the plan says so."""
        ...

    def hosts(self, model: str) -> Sequence[PartitionView]:
        """Accepting partitions where the model is loaded, on any accelerator."""
        ...

    def lenders(self, model: str) -> Sequence[PartitionView]: ...  #: where it is a guest
    def demand(self, model: str) -> Demand: ...
    def latency_ms(self, model: str, rows: int, share_pct: int, shape: Hashable = None) -> float:
        """Predicted command-to-completion time, corrected by what was seen lately.

        ``shape`` is the batch's shape key, where known: corrections are kept for each.
        """
        ...

    def admission_margin_ms(self, model: str) -> float:
        """How long before its deadline a request of this model should be predicted to end."""
        ...

    @property
    def session_ms(self) -> float | None:
        """The period of the plan's schedule, where it has one (D-STACK section 6.1)."""
        ...

    def rows_per_s(self, model: str) -> float:
        """Rows per second that arrive, smoothed; what was planned before anything was seen."""
        ...

    def runs_since(self, model: str, since_ms: float) -> int:
        """Batches of the model that began on this accelerator at or after ``since_ms``."""
        ...

    def best_batch(self, model: str, share_pct: int) -> int:
        """The batch of highest throughput at that share within half the model's SLO, at least 1."""
        ...


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a batch of up to ``rows`` rows now; ``padded_rows`` are executed, if they are more."""

    partition: str
    model: str
    rows: int
    padded_rows: int = 0


@dataclass(frozen=True, slots=True)
class Drop:
    """Give up a model's ``requests`` most urgent requests, so that those behind them make it."""

    model: str
    requests: int


@dataclass(frozen=True, slots=True)
class Dispatch:
    """What starts now, what is given up before, and when to ask again if nothing else happens."""

    launches: tuple[Launch, ...] = ()
    wake_ms: float | None = None
    drops: tuple[Drop, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request may not come in: predicted lateness, and when trying again may succeed.

    ``retry_after_ms`` is ``None`` where waiting cannot help.
    ``full`` marks a queue at its bound, whatever the deadline.
    """

    late_ms: float
    retry_after_ms: float | None
    full: bool = False


class Planner(Protocol):
    """How are the accelerators cut? Total: what does not fit is in ``unserved_rows_per_s``."""

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan: ...


class Dispatcher(Protocol):
    """What runs now?"""

    def __call__(self, view: View, now_ms: float) -> Dispatch: ...


class Admission(Protocol):
    """Does this one come in? ``None`` is yes."""

    def __call__(self, request: Request, view: View, now_ms: float) -> Refusal | None: ...


class Scaler(Protocol):
    """How many accelerators of each kind, when is that asked again, and for which rates?"""

    @property
    def period_ms(self) -> float:
        """Rates are sampled over periods of this length, and looked at when one ends."""
        ...

    @property
    def weight(self) -> float:
        """The part of the newest sample in the smoothed rate."""
        ...

    @property
    def cool_down_ms(self) -> float:
        """The least time between two plans that rates ask for."""
        ...

    @property
    def resolve_ms(self) -> float:
        """How long rates must have been higher before a plan for more is asked for."""
        ...

    @property
    def patience_ms(self) -> float:
        """How long rates must have been lower before a plan for less is asked for.

        Also how long a plan that needs accelerators which do not come is waited with.
        """
        ...

    def target_rows_per_s(self, seen_rows_per_s: float) -> float:
        """The rate to plan for, of a model whose smoothed rate is this."""
        ...

    def moved(self, seen_rows_per_s: float, planned_rows_per_s: float) -> int:
        """1 if a model's smoothed rate asks for more than was planned, -1 for less, else 0."""
        ...

    def __call__(self, plan: Plan, fleet: Fleet) -> Mapping[str, int]:
        """Accelerators wanted in all, by kind.

        ``plan`` is on the fleet that is there, or, where more can be had, on as few of all of them
        as will do; those are then named in ``fleet`` too.
        """
        ...


class ColdStart(Protocol):
    """How does a model that is not resident get in?"""

    def __call__(self, profile: Profile, gpu: Gpu, fleet: Fleet) -> LoadPlan: ...


class Eviction(Protocol):
    """Who leaves when memory is short? Models in the order they go."""

    def __call__(
        self, need_bytes: int, resident: Mapping[str, Tally], now_ms: float
    ) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True)
class System:
    """One row of the catalog: six answers under one name.

    ``planner`` cuts a fleet that is there, all of it; ``packer`` is the same system asked for as
    few accelerators of the fleet as will do, which is what capacity planning wants to know, and
    which plans where accelerators can be had and given back.
    """

    name: str
    source: str
    planner: Planner
    packer: Planner
    dispatcher: Dispatcher
    admission: Admission
    scaler: Scaler
    cold_start: ColdStart
    eviction: Eviction
    #: inputs are staged into a pool on the device when they arrive (E2bird section 5)
    staged: bool = False
