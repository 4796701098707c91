"""The engine's interface: events that it takes in, commands that it gives."""

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


class Message(Struct, frozen=True, array_like=True, tag=True):
    """An event, a command or work; encoded, a list that begins with the name of its class."""


# ---------------------------------------------------------------------------- work for a device


class CreatePartition(Message, frozen=True):
    """Create a partition of ``share_pct``; the device chooses its units and reports them.

    ``leaving`` are partitions that are released once this one serves: it should share units with
    them meanwhile rather than with partitions that remain. What a ``background`` one runs yields
    to all others, where the device can do that. What models print in a ``quiet`` one is dropped.
    """

    gpu: str
    partition: str
    share_pct: int
    leaving: tuple[str, ...] = ()
    background: bool = False
    quiet: bool = False


class ReleasePartition(Message, frozen=True):
    """Release a drained partition and its units."""

    gpu: str
    partition: str


class Load(Message, frozen=True):
    """Make ``model`` (a deployment key) runnable in a partition at these batch sizes.

    If it is ``cold``, all but its weights: they come by ``Fetch``.
    """

    gpu: str
    partition: str
    model: str
    batches: tuple[int, ...] = ()
    cold: bool = False


class Unload(Message, frozen=True):
    gpu: str
    partition: str
    model: str


class Run(Message, frozen=True, gc=False):
    """Execute a batch; its process is ended ``limit_ms`` after the batch could begin."""

    gpu: str
    partition: str
    batch: Batch
    limit_ms: float = inf


class CopyInputs(Message, frozen=True, gc=False):
    """Copy a request's inputs into its model's pool on an accelerator (E2bird section 5.1).

    A pool is a ring of ``slots``; a slot holds one row of every input. The request's rows go to
    ``slot`` and those after it, never past the last one. Copies for one model are made in order,
    while batches run.
    """

    gpu: str
    request: Request
    slot: int
    slots: int


class Fetch(Message, frozen=True):
    """Bring the weights of a model that a partition has loaded, by the steps of ``plan``.

    Work of the accelerator, in no order with the partition's. Afterwards layers that are copied
    are held there, for all of its partitions; layers that are not, and were not held before, are
    read where they lie. If the plan is overlapped, batches may be sent meanwhile: each layer waits
    for its weights. It fails where the partition is lost, or unloads the model.
    """

    gpu: str
    partition: str
    model: str
    plan: LoadPlan


class Evict(Message, frozen=True):
    """Give back the memory of these layers' weights; places in ``Profile.layers``."""

    gpu: str
    model: str
    layers: tuple[int, ...]


#: Work of one partition, and all work.
PartitionWork = CreatePartition | ReleasePartition | Load | Unload | Run
Work = PartitionWork | CopyInputs | Fetch | Evict

# ------------------------------------------------------------------------------------ commands


class SendReply(Message, frozen=True):
    """Send a reply to its client."""

    reply: Reply


class SolvePlan(Message, frozen=True):
    """Ask for a plan for this demand; ``PlanSolved`` answers it, with the same ``ticket``.

    ``fleet`` is there now. On an elastic fleet ``largest`` is all that could be had: the answer
    then also says how few accelerators of it suffice.
    """

    ticket: int
    demand: tuple[Demand, ...]
    current: Plan
    profiles: Mapping[str, Profile]
    fleet: Fleet
    largest: Fleet | None = None


class ScaleFleet(Message, frozen=True):
    """Bring the number of accelerators to this total, by kind.

    Each that is added is reported by ``GpuJoined``. If there are too many, ``DismissGpu`` names
    those to take away once they are empty.
    """

    gpus: Mapping[str, int]


class DismissGpu(Message, frozen=True):
    """Take away an accelerator, which is empty; ``GpuLeft`` reports it."""

    gpu: str


class CancelFetch(Message, frozen=True):
    """Nobody waits for a model that is being fetched any more.

    The fetch still ends once: with a failure, and what has come is given back, or well if it was
    too late.
    """

    gpu: str
    model: str


class CancelRun(Message, frozen=True):
    """Tell a model's code that the client of a request which runs went away.

    Its batch still ends once, as usual.
    """

    gpu: str
    partition: str
    request_id: int


class WakeAt(Message, frozen=True, gc=False):
    """Deliver ``Woke`` at that time."""

    at_ms: float


class TimeoutAt(Message, frozen=True, gc=False):
    """Deliver ``TimedOut`` at that time."""

    at_ms: float


class ReportTimeout(Message, frozen=True):
    """Tell a client that its request, which still runs, timed out; ``SendReply`` follows later."""

    request: Request
    error: ServeError


class ReportStatus(Message, frozen=True):
    """Tell a deployment's owner that it is ready, failed (or was quarantined), or is gone."""

    model: str
    status: str  #: "ready" | "failed" | "gone"
    detail: str = ""


class ReportSettled(Message, frozen=True):
    """Tell whether every model is now loaded in all of its planned partitions; it changed."""

    settled: bool


#: Commands that the runtime carries out itself, and all commands.
RuntimeCommand = (
    SendReply
    | SolvePlan
    | ScaleFleet
    | DismissGpu
    | CancelFetch
    | CancelRun
    | WakeAt
    | TimeoutAt
    | ReportTimeout
    | ReportStatus
    | ReportSettled
)
Command = Work | RuntimeCommand

# -------------------------------------------------------------------------------------- events


class RequestArrived(Message, frozen=True, gc=False):
    request: Request


class RefusedUpstream(Message, frozen=True):
    """Requests that got a recent refusal of a like request, which still held, instead of asking."""

    model: str
    requests: int
    rows: int


class RequestCancelled(Message, frozen=True):
    """The client of this request went away."""

    model: str
    request_id: int


class SequenceEnded(Message, frozen=True):
    """A sequence of a model has no further requests; its partition may forget it."""

    model: str
    sequence: int | str


class AppEnded(Message, frozen=True):
    """A request of an app has no further stages, though some were to follow."""

    request: int


@dataclass(frozen=True, slots=True)
class Deployment:
    """A profiled model to deploy. ``demand.rows_per_s`` is the expected rate, 0 if unknown.

    Where weights are swapped, those of a ``pinned`` model stay resident, and others' stay for
    ``keep_ms`` after a batch began. A batch may take ``limit_ms``, whatever its requests may.
    """

    demand: Demand
    profile: Profile
    queue_limit: int = 4096
    pinned: bool = False
    keep_ms: float = 0.0
    limit_ms: float = 0.0


class ModelsDeployed(Message, frozen=True):
    """Deploy models, planned together. One ``ReportStatus`` answers each."""

    deployments: tuple[Deployment, ...]


class ProfileMeasured(Message, frozen=True):
    """A deployed model was measured again: plan, and predict, with this profile from now on."""

    model: str
    profile: Profile


class ModelWithdrawn(Message, frozen=True):
    """Withdraw a model: serve what is queued, then unload it everywhere."""

    model: str


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a piece of work failed. ``fatal`` if the partition's process died.

    ``innocent`` if it died for another reason, or of one of several pieces and it is not known
    which. ``bad_input`` if a request's values are at fault, and not the model.
    """

    detail: str
    fatal: bool = False
    innocent: bool = False
    bad_input: bool = False


class WorkFinished(Message, frozen=True):
    """A piece of work ended: it succeeded if ``failure is None``.

    For ``Run``, ``outputs`` holds one tuple of tensors per request of the batch and ``timing`` the
    worker's phases; ``errors``, if not empty, one entry per request: why the model refused it, and
    ``parameters`` what its code says besides tensors.
    For ``CreatePartition``, ``units`` are the cores or SMs granted; for ``Load``,
    ``resident_bytes`` what the model holds there.
    """

    work: Work
    outputs: tuple[tuple[Tensor, ...], ...] = ()
    failure: Failure | None = None
    timing: Timing = Timing()
    units: tuple[int, ...] = ()
    resident_bytes: int = 0
    errors: tuple[ServeError | None, ...] = ()
    parameters: tuple[str, ...] = ()


class PartitionLost(Message, frozen=True):
    """A partition died; all work sent to it has been finished with a fatal failure.

    ``blamed`` are models that caused it, whatever was running.
    """

    gpu: str
    partition: str
    detail: str
    blamed: tuple[str, ...] = ()


class BatchWaits(Message, frozen=True):
    """The code of a running batch waits for models that it calls; others may run meanwhile.

    A device reports it once for each batch, whose end still comes. If ``joins`` is not 0, the batch
    is executed again and again until its requests are done. Others of its model may join it, up to
    so many rows in all.
    """

    gpu: str
    partition: str
    batch: int
    joins: int = 0


class TierChanged(Message, frozen=True):
    """A host has most of a model's weights on its disk only, or again in its memory.

    Until a device says so they are taken to be in memory, and those that it fetched are.
    """

    gpu: str
    model: str
    on_disk: bool


class PlanSolved(Message, frozen=True):
    """The answer to ``SolvePlan``; ``failure`` if the planner broke.

    ``plan`` is for the fleet that is there. ``ample``, given if ``largest`` was, uses the fewest of
    all accelerators that could be had; it equals ``plan`` if these are there.
    """

    ticket: int
    plan: Plan
    failure: str | None = None
    ample: Plan | None = None


class PlanChanged(Message, frozen=True):
    """Whoever plans would answer otherwise than before: a plan came from outside."""


class GpuJoined(Message, frozen=True):
    """An accelerator joined the fleet; it is empty. If ``more`` come with it, they follow."""

    gpu: Gpu
    more: bool = False


class GpuLeft(Message, frozen=True):
    """An accelerator is gone: it was dismissed, or it failed.

    Work that was still sent to it fails after this event, and counts against no model. If ``more``
    left with it, they follow.
    """

    gpu: str
    more: bool = False


class EpochEnded(Message, frozen=True):
    """An epoch ended: rates are sampled, and a new plan may be due."""


class Woke(Message, frozen=True):
    """A time set by ``WakeAt`` has come."""


class TimedOut(Message, frozen=True):
    """A time set by ``TimeoutAt`` has come: running batches are checked."""


Event = (
    RequestArrived
    | RefusedUpstream
    | RequestCancelled
    | SequenceEnded
    | AppEnded
    | ModelsDeployed
    | ModelWithdrawn
    | ProfileMeasured
    | WorkFinished
    | PartitionLost
    | BatchWaits
    | TierChanged
    | PlanChanged
    | PlanSolved
    | GpuJoined
    | GpuLeft
    | EpochEnded
    | Woke
    | TimedOut
)
