"""A request, the batch it joins, and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from msgspec import Struct

from interlace.core.errors import ServeError
from interlace.core.sequence import SequenceStep
from interlace.core.tensor import Tensor

#: Priority 0 is "no say in it" (Triton's default level): it comes after every stated priority.
UNSTATED_PRIORITY: Final = 2**64


class Outcome(Enum):
    """How a request ended; each accepted request ends exactly once."""

    OK = "ok"  #: answered within its SLO
    LATE = "late"  #: answered, after its deadline
    REFUSED = "refused"  #: never accepted
    #: accepted, then dropped from the queue because its deadline could not be met, or given up
    #: because its batch ran far longer than predicted
    EXPIRED = "expired"
    CANCELLED = "cancelled"  #: the client went away
    FAILED = "failed"  #: the model or its device failed


class CallContext(Struct, frozen=True, array_like=True, gc=False):
    """What a client says besides tensors: the request's id, and its parameters as JSON."""

    id: str = ""
    parameters: str = ""


class BlsCall(Struct, frozen=True, array_like=True, gc=False):
    """A request that a model's code makes of another while a batch of it runs (Triton's BLS).

    ``caller`` is the deployment key of the model that asks, ``deadline_ms`` the latest of its
    batch. An empty ``version`` is the newest. ``timeout_us``, if not 0, is the callee's from then.
    ``control`` is "load", "unload" or "ready" for one that asks the server and not the model, with
    the parameters of a client who asks for that; "ready" fails if it is not.
    """

    caller: str
    model: str
    version: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[str, ...]
    context: CallContext
    deadline_ms: float
    timeout_us: int = 0
    control: str = ""


class LaterStage(Struct, frozen=True, array_like=True, gc=False):
    """A stage that an app's request still has before it; ``rows`` as on average."""

    model: str
    rows: int
    deadline_ms: float


class StageOf(Struct, frozen=True, array_like=True, gc=False):
    """What a request is a part of: a stage of this app's request, due at ``deadline_ms``.

    Stages in ``later`` follow. If it has ``begun``, an earlier stage was accepted.
    """

    stage: str
    app: str
    request: int
    deadline_ms: float
    later: tuple[LaterStage, ...] = ()
    begun: bool = False


class Request(Struct, frozen=True, array_like=True, gc=False):
    """One call of one deployed model. Times are ms on the runtime's clock.

    ``model`` is the deployment key (name, version and generation), not the public name. ``rows``
    counts toward the model's batch limit. Requests of equal ``shape`` may share a batch. The
    larger ``priority`` the later served (1 is the most urgent, 0 the model's default, as in
    Triton). ``context`` is given where the model's code can read it. A request that ``streams`` may
    have responses before its reply: it is never run twice, and runs as long as they come.
    Requests of one ``sequence`` run in the partition of its first one, and never twice.
    """

    id: int
    model: str
    arrived_ms: float
    deadline_ms: float
    rows: int = 1
    shape: Hashable = ()
    priority: int = 0
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[str, ...] = ()  #: names wanted; empty for all
    context: CallContext | None = None
    streams: bool = False
    sequence: SequenceStep | None = None
    part: StageOf | None = None


class Batch(Struct, frozen=True, array_like=True, gc=False):
    """Requests that run together; ``attempt`` is 1 for the first try.

    ``slot`` is where the rows begin in the model's pool on the accelerator; ``None`` if they are
    not staged there, or not in a row. ``padded_rows``, if more than ``rows``, is executed: the rest
    are dummy rows, whose results nobody gets.
    """

    id: int
    model: str
    requests: tuple[Request, ...]
    rows: int
    attempt: int = 1
    slot: int | None = None
    padded_rows: int = 0

    @property
    def run_rows(self) -> int:
        """Rows that are executed."""
        return max(self.rows, self.padded_rows)


class Timing(Struct, frozen=True, array_like=True, gc=False):
    """Where a request's time went, in ms: queue, then the worker's three phases.

    ``began_ns`` and ``ended_ns`` are when its batch did, on the accelerator's own clock; both are 0
    where it has none. ``executed_rows`` are those of the graph that ran the batch; 0 where a device
    does not tell.
    """

    queue_ms: float = 0.0
    input_ms: float = 0.0
    infer_ms: float = 0.0
    output_ms: float = 0.0
    batch_rows: int = 0
    began_ns: int = 0
    ended_ns: int = 0
    executed_rows: int = 0

    @property
    def gpu_ms(self) -> float:
        """The accelerator's own time for the batch; 0 where it has no clock."""
        return (self.ended_ns - self.began_ns) / 1e6


class StageTiming(Struct, frozen=True, array_like=True, gc=False):
    """One stage of an app's request: its wait, all after it, and what it left of its time."""

    stage: str
    wait_ms: float
    run_ms: float
    slack_ms: float


class Reply(Struct, frozen=True, array_like=True):
    """The one answer to a request. ``batch`` is the one whose output bytes it refers to.

    ``deaths`` are the processes that ended while they ran this request and no other, each for no
    reason that is known to lie elsewhere. ``stages`` are those of an app that were answered.
    """

    request: Request
    outcome: Outcome
    outputs: tuple[Tensor, ...] = ()
    error: ServeError | None = None
    timing: Timing = Timing()
    batch: int | None = None
    deaths: int = 0
    stages: tuple[StageTiming, ...] = ()
    parameters: str = ""  #: what the model's code says besides tensors, as JSON


@dataclass(frozen=True, slots=True)
class PartialResponse:
    """One response to a request that streams, before its reply.

    After a ``final`` one the model sends no more. ``release`` gives back the memory of the outputs;
    whoever receives the response calls it once.
    """

    request_id: int
    outputs: tuple[Tensor, ...]
    error: ServeError | None
    final: bool
    release: Callable[[], None]
    parameters: str = ""  #: as in ``Reply``


class Callbacks(Struct, frozen=True, eq=False):
    """The functions that hear of a request.

    ``on_reply`` gets its reply, exactly once. ``on_timeout`` is called before, at most once, when
    the request runs far longer than was predicted: the caller can be answered, but its inputs are
    still read. ``on_response`` gets each response of a request that streams, before the reply, and
    releases it.
    """

    on_reply: Callable[[Reply], None]
    on_timeout: Callable[[ServeError], None] | None = None
    on_response: Callable[[PartialResponse], None] | None = None
