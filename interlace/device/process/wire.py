"""Frames between the main process, its fork server and its workers. Tensors go by reference."""

from __future__ import annotations

import msgspec

from interlace.core.metric_change import MetricChange
from interlace.core.model import Model
from interlace.core.request import CallContext
from interlace.core.tensor import Signature, Tensor

# --------------------------------------------------------------------- main process to fork server


class Preload(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """Import these modules, so that workers forked from now on share their pages."""

    modules: tuple[str, ...]


class ForkWorker(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """Fork a worker that talks over the descriptor sent along."""

    worker: int
    name: str


class Forked(msgspec.Struct, array_like=True, tag=1, frozen=True):
    worker: int
    pid: int


class Exited(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """``status`` as of ``os.waitstatus_to_exitcode``: negative for a signal."""

    worker: int
    status: int


ToForkServer = Preload | ForkWorker
FromForkServer = Forked | Exited

# -------------------------------------------------------------------------- main process to worker


class WorkerSetup(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """The first frame: what the worker is. ``opener`` is ``module:function`` of ``open_model``.

    A ``background`` worker gives way to all that serve. Output of a ``quiet`` one is dropped.
    """

    name: str
    cores: tuple[int, ...]
    owner_pid: int
    arena: int
    opener: str
    weights_dir: str | None
    patience_s: float  #: how long a batch waits for output memory
    background: bool = False
    quiet: bool = False
    weights_arena: int = 0  #: memory for swapped weights, where there is any
    models_dir: str = ""  #: the repository that it may read; empty: it is not confined
    files_dir: str = ""  #: files of models that came with a load, which it may read, too


class LoadModel(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """As ``Load``: the weights of a ``cold`` one come later.

    ``number``, below 0, stands for the batch in calls that the code of the model makes meanwhile.
    """

    model: Model
    batches: tuple[int, ...]
    cold: bool = False
    number: int = 0


class UnloadModel(msgspec.Struct, array_like=True, tag=3, frozen=True):
    model: str


class Column(msgspec.Struct, array_like=True, frozen=True):
    """One input of every request of a batch. ``dims`` is the first request's shape."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    arenas: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


class RequestHead(msgspec.Struct, array_like=True, frozen=True):
    """A request beside its tensors; ``outputs`` are the names it wants, empty for all."""

    context: CallContext
    outputs: tuple[str, ...]
    request: int = 0


class RunBatch(msgspec.Struct, array_like=True, tag=4, frozen=True):
    """Execute a batch. ``wanted`` are output names, empty for all; ``freed`` are delivered.

    The columns of a ``staged`` batch are windows of the model's ring: one run of bytes each, which
    outputs must not refer to. ``padded_rows`` are executed if they are more than the rows.
    ``heads``, one per request, are given if the model's code can read them.
    """

    batch: int
    model: str
    rows: tuple[int, ...]
    columns: tuple[Column, ...]
    wanted: tuple[str, ...]
    freed: tuple[int, ...]
    staged: bool = False
    padded_rows: int = 0
    heads: tuple[RequestHead, ...] = ()


class FreeBatches(msgspec.Struct, array_like=True, tag=5, frozen=True):
    """The replies of these batches are delivered. No answer."""

    batches: tuple[int, ...]


class ForgetArena(msgspec.Struct, array_like=True, tag=6, frozen=True):
    """No input lies in that arena any more, and none ever will. No answer."""

    arena: int


class CancelRequest(msgspec.Struct, array_like=True, tag=9, frozen=True):
    """The client of a request of the batch that runs went away. No answer."""

    request: int


class PlaceWeights(msgspec.Struct, array_like=True, tag=20, frozen=True):
    """The weights of these layers lie at these offsets of the weights' arena. No answer."""

    model: str
    layers: tuple[int, ...]
    offsets: tuple[int, ...]


class CopyWeights(msgspec.Struct, array_like=True, tag=21, frozen=True):
    """Copy these layers' weights there, while batches run; ``Copied`` answers when they are."""

    model: str
    layers: tuple[int, ...]
    offsets: tuple[int, ...]


class StopCopying(msgspec.Struct, array_like=True, tag=22, frozen=True):
    """Nobody waits for the model's weights any more. ``Copied`` still comes, no other answer."""

    model: str


class EvictWeights(msgspec.Struct, array_like=True, tag=23, frozen=True):
    """Read these layers' weights where they come from again; their memory is another's."""

    model: str
    layers: tuple[int, ...]


class GiveArena(msgspec.Struct, array_like=True, tag=7, frozen=True):
    """Inputs of later batches lie in this arena, whose descriptor comes along.

    A confined worker may not look for it in the process that made it.
    """

    arena: int


class RequestResult(msgspec.Struct, array_like=True, frozen=True):
    """One request's own outputs; or, with a ``reason`` (of ``Reason``), why it has none."""

    outputs: tuple[Tensor, ...] = ()
    reason: str = ""
    detail: str = ""
    parameters: str = ""


class CallAnswered(msgspec.Struct, array_like=True, tag=8, frozen=True):
    """The answer to ``CallModel``: outputs, which stay where they are, or why there are none.

    A call that ``streams`` has several: its outputs are released by ``number``, if it is not 0, no
    response follows a ``final`` one, and its inputs are read until it has ``ended``.
    """

    call: int
    result: RequestResult
    number: int = 0
    final: bool = True
    ended: bool = True


ToWorker = (
    WorkerSetup
    | LoadModel
    | UnloadModel
    | RunBatch
    | FreeBatches
    | ForgetArena
    | CancelRequest
    | PlaceWeights
    | CopyWeights
    | StopCopying
    | EvictWeights
    | GiveArena
    | CallAnswered
)

# -------------------------------------------------------------------------- worker to main process


class Ready(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """The answer to ``WorkerSetup``."""


class Loaded(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """``layer_bytes`` is the memory that each layer's weights take; empty where they stay.

    Where they do not, they are read from ``weights_file``; ``was_read`` says that it was, as the
    model ran to be opened. ``tables``, where they begin and their bytes, are what is read by rows.
    ``batch`` is the ``number`` of the ``LoadModel``.
    """

    model: str
    signature: Signature
    resident_bytes: int
    layer_bytes: tuple[int, ...] = ()
    architecture: str = ""
    weights_file: str = ""
    was_read: bool = False
    tables: tuple[tuple[int, int], ...] = ()
    batch: int = 0


class Unloaded(msgspec.Struct, array_like=True, tag=3, frozen=True):
    model: str


class BatchOutput(msgspec.Struct, array_like=True, frozen=True):
    """One output of a batch: where it begins, and what each request has of it.

    ``dims`` is the shape of the whole batch. With ``sizes`` empty each row takes ``row_bytes``;
    otherwise each request takes its entry of ``sizes``.
    """

    name: str
    datatype: str
    dims: tuple[int, ...]
    arena: int
    offset: int
    row_bytes: int
    sizes: tuple[int, ...]


class BatchResult(msgspec.Struct, array_like=True, tag=4, frozen=True):
    """A batch ended well. ``held``: the worker keeps memory for it until it is freed.

    ``began_ns`` and ``ended_ns`` are by the accelerator's clock, 0 where it has none;
    ``executed_rows`` as in ``Timing``. ``results``, if not empty, are one per request and stand in
    place of ``outputs``.
    """

    batch: int
    outputs: tuple[BatchOutput, ...]
    batched: bool
    held: bool
    input_ms: float
    infer_ms: float
    output_ms: float
    began_ns: int = 0
    ended_ns: int = 0
    executed_rows: int = 0
    results: tuple[RequestResult, ...] = ()


class Failed(msgspec.Struct, array_like=True, tag=5, frozen=True):
    """The piece of work failed, the worker is well; by a request's values, if ``bad_input``.

    ``batch`` is given for one that has waited, or the ``number`` of a ``LoadModel``.
    """

    detail: str
    bad_input: bool = False
    batch: int = 0


class Starved(msgspec.Struct, array_like=True, tag=6, frozen=True):
    """The batch of a line waits for output memory: free what is delivered. Not an answer."""

    line: str = ""


class Waits(msgspec.Struct, array_like=True, tag=7, frozen=True):
    """A batch waits for the end of another of its model, or for calls: others may run. No answer.

    Its own answer comes out of order. ``joins`` is as in ``BatchWaits``; a batch says it again
    before each time that it is executed.
    """

    batch: int
    joins: int = 0


class CallModel(msgspec.Struct, array_like=True, tag=8, frozen=True):
    """The code of a model calls another while it runs a batch; ``CallAnswered`` follows.

    Its inputs lie in the worker's arena until then, or are outputs of earlier calls. ``call`` is
    negative, as the numbers of responses are, and differs from them. ``released`` are
    calls whose outputs are no longer read. An empty version is the newest, ``timeout_us`` 0 none.
    One that ``streams`` may have several answers. ``control`` is as in ``OutgoingCall``.
    """

    call: int
    batch: int
    model: str
    version: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[str, ...]
    context: CallContext
    timeout_us: int
    released: tuple[int, ...]
    streams: bool = False
    control: str = ""


class CallsLeft(msgspec.Struct, array_like=True, tag=11, frozen=True):
    """Nobody reads outputs of calls any more, as in ``CallModel``. No answer.

    Nobody waits for further answers to ``cancelled``, if it is not 0.
    """

    released: tuple[int, ...]
    cancelled: int = 0


class ReadinessChanged(msgspec.Struct, array_like=True, tag=12, frozen=True):
    """The code of a model says whether it is ready. No answer."""

    model: str
    ready: bool


class MetricsChanged(msgspec.Struct, array_like=True, tag=9, frozen=True):
    """The code of models counted. No answer."""

    changes: tuple[MetricChange, ...]


class Responded(msgspec.Struct, array_like=True, tag=10, frozen=True):
    """A response to a request of a batch that runs; ``final`` if no more follow. No answer.

    The worker keeps its memory until ``number``, which is negative, is freed as a batch is.
    """

    batch: int
    request: int
    number: int
    result: RequestResult
    final: bool


class Copied(msgspec.Struct, array_like=True, tag=20, frozen=True):
    """The answer to ``CopyWeights``: why it failed, if it did."""

    model: str
    failure: str


class Evicted(msgspec.Struct, array_like=True, tag=21, frozen=True):
    model: str


WorkerAnswer = Ready | Loaded | Unloaded | BatchResult | Failed | Copied | Evicted
#: What a worker sends unasked.
Unasked = Starved | Waits | CallModel | CallsLeft | MetricsChanged | ReadinessChanged | Responded
FromWorker = WorkerAnswer | Unasked

decode_to_fork_server = msgspec.msgpack.Decoder[ToForkServer](ToForkServer).decode
decode_from_fork_server = msgspec.msgpack.Decoder[FromForkServer](FromForkServer).decode
decode_to_worker = msgspec.msgpack.Decoder[ToWorker](ToWorker).decode
decode_from_worker = msgspec.msgpack.Decoder[FromWorker](FromWorker).decode
