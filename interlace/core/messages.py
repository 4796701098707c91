"""Everything the engine hears and everything it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from msgspec import Struct

from interlace.core.errors import ServeError
from interlace.core.hardware import Fleet, Gpu
from interlace.core.loading import LoadPlan
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profile
from interlace.core.request import Batch, Reply, Request, Timing
from interlace.core.tensor import Tensor

# ---------------------------------------------------------------------------- work for a device


@dataclass(frozen=True, slots=True)
class CreatePartition:
    """Make a partition of ``share_pct``; the device picks and reports the units.

    ``leaving`` are partitions that go once this one serves: better to share units with them
    meanwhile than with any that stay.
    """

    gpu: str
    partition: str
    share_pct: int
    leaving: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReleasePartition:
    """Give a drained partition's units back."""

    gpu: str
    partition: str


@dataclass(frozen=True, slots=True)
class Load:
    """Make ``model`` (a deployment key) runnable in a partition at these batch sizes."""

    gpu: str
    partition: str
    model: str
    batches: tuple[int, ...] = ()
    plan: LoadPlan | None = None


@dataclass(frozen=True, slots=True)
class Unload:
    gpu: str
    partition: str
    model: str


class Run(Struct, frozen=True, array_like=True, gc=False):
    """Execute a batch; after ``limit_ms`` from when it could begin, its process is ended."""

    gpu: str
    partition: str
    batch: Batch
    limit_ms: float = inf


class CopyInputs(Struct, frozen=True, array_like=True, gc=False):
    """Copy a request's inputs into its model's pool on an accelerator (E2bird section 5.1).

    A pool is a ring of ``slots``; a slot holds one row of every input. The request's rows go to
    ``slot`` and those after it, which never reach past the last one. Copies of one model are made
    in the order asked for, beside whatever runs.
    """

    gpu: str
    request: Request
    slot: int
    slots: int


#: Work of one partition, and all work.
PartitionWork = CreatePartition | ReleasePartition | Load | Unload | Run
Work = PartitionWork | CopyInputs

# ------------------------------------------------------------------------------------ commands


class SendReply(Struct, frozen=True, array_like=True):
    """Give this reply to its caller."""

    reply: Reply


@dataclass(frozen=True, slots=True)
class SolvePlan:
    """Ask for a plan for this demand; the answer comes back as ``PlanSolved`` with ``ticket``.

    ``fleet`` is there now. ``largest``, where accelerators can be had and given back, is all that
    could be: the answer then also says how few of them would do.
    """

    ticket: int
    demand: tuple[Demand, ...]
    current: Plan
    profiles: Mapping[str, Profile]
    fleet: Fleet
    largest: Fleet | None = None


@dataclass(frozen=True, slots=True)
class ScaleFleet:
    """This many accelerators of each kind are wanted in all.

    More than there are: each comes as ``GpuJoined``. Fewer: ``DismissGpu`` names those that go
    once nothing is left on them.
    """

    gpus: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class DismissGpu:
    """An accelerator is empty and not wanted: it may be taken away. Answered by ``GpuLeft``."""

    gpu: str


class WakeAt(Struct, frozen=True, array_like=True, gc=False):
    """Deliver ``Woke`` at that time."""

    at_ms: float


class TimeoutAt(Struct, frozen=True, array_like=True, gc=False):
    """Deliver ``TimedOut`` at that time."""

    at_ms: float


class ReportTimeout(Struct, frozen=True, array_like=True):
    """Tell a caller that its request, which runs, is too late; its ``SendReply`` still comes."""

    request: Request
    error: ServeError


@dataclass(frozen=True, slots=True)
class ReportStatus:
    """A change of a deployment that its owner waits for: became ready, failed, or is gone."""

    model: str
    status: str  #: "ready" | "failed" | "gone"
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ReportSettled:
    """Whether every model is now loaded in each partition that the plan gives it has changed."""

    settled: bool


#: Commands that the runtime carries out itself, and all commands.
RuntimeCommand = (
    SendReply
    | SolvePlan
    | ScaleFleet
    | DismissGpu
    | WakeAt
    | TimeoutAt
    | ReportTimeout
    | ReportStatus
    | ReportSettled
)
Command = Work | RuntimeCommand

# -------------------------------------------------------------------------------------- events


class RequestArrived(Struct, frozen=True, array_like=True, gc=False):
    request: Request


@dataclass(frozen=True, slots=True)
class RefusedUpstream:
    """Requests that got a refusal which was given to their like a moment before, and still held."""

    model: str
    requests: int
    rows: int


@dataclass(frozen=True, slots=True)
class RequestCancelled:
    """The caller of this request went away."""

    model: str
    request_id: int


@dataclass(frozen=True, slots=True)
class Deployment:
    """A profiled model that joins. ``demand.rate_rps`` is the expected rate, 0 if unknown."""

    demand: Demand
    profile: Profile
    queue_limit: int = 4096


@dataclass(frozen=True, slots=True)
class ModelsDeployed:
    """Models join together, and are planned together. Each is answered by one ``ReportStatus``."""

    deployments: tuple[Deployment, ...]


@dataclass(frozen=True, slots=True)
class ModelWithdrawn:
    """A model leaves: what is queued is served, then it is unloaded everywhere."""

    model: str


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a piece of work failed. ``fatal`` if the partition's process died with it.

    ``innocent``: it died of something else, or of one of several pieces and nobody knows which.
    """

    detail: str
    fatal: bool = False
    innocent: bool = False


class WorkFinished(Struct, frozen=True, array_like=True):
    """A piece of work ended, well (``failure is None``) or not.

    For ``Run``, ``outputs`` holds one tuple of tensors per request of the batch and ``timing`` the
    worker's phases. For ``CreatePartition``, ``units`` are the cores or SMs granted; for ``Load``,
    ``resident_bytes`` what the model holds there.
    """

    work: Work
    outputs: tuple[tuple[Tensor, ...], ...] = ()
    failure: Failure | None = None
    timing: Timing = Timing()
    units: tuple[int, ...] = ()
    resident_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PartitionLost:
    """A partition died; every piece of work it held has been finished with a fatal failure.

    ``blamed`` are models whose doing it is, whatever ran.
    """

    gpu: str
    partition: str
    detail: str
    blamed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanSolved:
    """The answer to ``SolvePlan``; ``failure`` if the planner broke.

    ``plan`` is for the fleet that is there. ``ample``, where ``largest`` was given, uses as few of
    the accelerators that could be had as will do; it equals ``plan`` if those are there.
    """

    ticket: int
    plan: Plan
    failure: str | None = None
    ample: Plan | None = None


@dataclass(frozen=True, slots=True)
class GpuJoined:
    """An accelerator came: it is there, and holds nothing."""

    gpu: Gpu


@dataclass(frozen=True, slots=True)
class GpuLeft:
    """An accelerator is gone, because it was dismissed or of itself.

    Work that it still held fails after this, and is nobody's fault.
    """

    gpu: str


@dataclass(frozen=True, slots=True)
class EpochEnded:
    """An epoch passed: look at the rates."""


@dataclass(frozen=True, slots=True)
class Woke:
    """A time asked for with ``WakeAt`` came."""


@dataclass(frozen=True, slots=True)
class TimedOut:
    """A time asked for with ``TimeoutAt`` came: look at the batches that run."""


Event = (
    RequestArrived
    | RefusedUpstream
    | RequestCancelled
    | ModelsDeployed
    | ModelWithdrawn
    | WorkFinished
    | PartitionLost
    | PlanSolved
    | GpuJoined
    | GpuLeft
    | EpochEnded
    | Woke
    | TimedOut
)
