"""Frames between the main process and a process that holds a GPU.

Lanes end their work in any order among each other, so a question names the line in which it is
answered, and its answer names it again. Questions to one lane use the frames of the CPU's workers.
"""

from __future__ import annotations

import msgspec

from interlace.device.cuda.backend.base import LibraryChoice
from interlace.device.process.wire import (
    BatchResult,
    EvictWeights,
    Failed,
    ForgetArena,
    FreeBatches,
    Loaded,
    LoadModel,
    Ready,
    RunBatch,
    Starved,
    Unloaded,
    UnloadModel,
)

# ---------------------------------------------------------------------------- main process to GPU


class GpuSetup(msgspec.Struct, array_like=True, tag=10, frozen=True):
    """The first frame: which GPU, how it is partitioned, where outputs go.

    One that ``lends`` only keeps weights, which others read through a socket at that path.
    ``backend``, ``lanes`` and ``opener`` are ``module:function``: what makes the ``Backend`` of a
    process, what makes its ``Lanes`` from the driver, and what opens a model on the host.
    The thread that polls for ends of batches rests ``rest_us`` between looks, or takes a core of
    its own if that is 0. ``gpu`` is a UUID, of a GPU or of a MIG instance, or empty for the only
    one that the process sees. ``handle_context`` as in ``CudaSettings``.
    """

    gpu: str
    backend: str
    lanes: str
    opener: str
    owner_pid: int
    arena: int = 0  #: for outputs; made by the main process
    arenas: tuple[int, ...] = ()  #: for inputs; registered before serving starts
    patience_s: float = 0.0  #: how long a batch waits for output memory
    lender: str = ""  #: socket of the process that lends weights; empty: weights of its own
    handle_context: LibraryChoice = "auto"
    keep_bytes: int = 0  #: as in ``CudaSettings``
    choices: str = ""  #: as in ``CudaSettings``
    rest_us: int = 0
    weights_bytes: int = 0  #: as in ``Gpu``
    peers: int = 0  #: as in ``HostLinks``: the GPUs that the process sees behind its own
    lends: str = ""


class CarveLane(msgspec.Struct, array_like=True, tag=11, frozen=True):
    """Make a partition; those ``leaving`` go once it serves."""

    share_pct: int
    leaving: tuple[str, ...] = ()


class ReleaseLane(msgspec.Struct, array_like=True, tag=12, frozen=True):
    """Give the lane back after what it was asked before."""


class StageRequest(msgspec.Struct, array_like=True, frozen=True):
    """One request's inputs (name, arena, offset, bytes), and the slots of its model's ring."""

    model: str
    slot: int
    slots: int
    rows: int
    inputs: tuple[tuple[str, int, int, int], ...]


class StageInputs(msgspec.Struct, array_like=True, tag=16, frozen=True):
    """Copy the inputs of all these requests, in order."""

    requests: tuple[StageRequest, ...]


class FetchWeights(msgspec.Struct, array_like=True, tag=22, frozen=True):
    """As ``Fetch``: the layers to copy by index, and over which link, 0 for the GPU's own; how many
    layers there are by the model's profile."""

    model: str
    layers: tuple[int, ...]
    links: tuple[int, ...]
    count: int


class GpuRequest(msgspec.Struct, array_like=True, tag=13, frozen=True):
    """Something of one partition (of none, for inputs), answered in ``line``.

    The rows of a staged batch begin at ``slot`` of its model's ring. A batch ``alone`` runs when
    nothing else does, in any partition: if the GPU fails then, it is known why.
    """

    line: str
    partition: str
    what: (
        CarveLane
        | ReleaseLane
        | LoadModel
        | UnloadModel
        | RunBatch
        | StageInputs
        | FetchWeights
        | EvictWeights
    )
    slot: int = -1
    alone: bool = False


class ForgetInputs(msgspec.Struct, array_like=True, tag=17, frozen=True):
    """A model's ring is needed no more. No answer."""

    model: str


class DropFetch(msgspec.Struct, array_like=True, tag=24, frozen=True):
    """Nobody waits for a model's weights any more. No answer."""

    model: str


ToGpu = GpuSetup | GpuRequest | FreeBatches | ForgetInputs | ForgetArena | DropFetch

# ---------------------------------------------------------------------------- GPU to main process


class GpuReady(msgspec.Struct, array_like=True, tag=20, frozen=True):
    """The answer to ``GpuSetup``: how the driver cut the GPU, and how long which step took.

    ``blocks`` as in ``Gpu``: (0, 0) without green contexts. ``took_s`` names the steps.
    """

    blocks: tuple[int, int]
    took_s: tuple[tuple[str, float], ...]


class Carved(msgspec.Struct, array_like=True, tag=11, frozen=True):
    """``units`` are the numbers of the SMs granted: all of them without partitions of SMs."""

    units: tuple[int, ...]


class Released(msgspec.Struct, array_like=True, tag=12, frozen=True):
    """The answer to ``ReleaseLane``."""


class StagedInputs(msgspec.Struct, array_like=True, tag=16, frozen=True):
    """The inputs lie in their slots, but for requests with a word of failure; in order."""

    failures: tuple[str, ...]


class WeightsMoved(msgspec.Struct, array_like=True, tag=22, frozen=True):
    """The answer to ``FetchWeights`` and ``EvictWeights``."""


GpuAnswer = (
    Ready
    | GpuReady
    | Carved
    | Released
    | Loaded
    | Unloaded
    | BatchResult
    | StagedInputs
    | WeightsMoved
    | Failed
)


class GpuReply(msgspec.Struct, array_like=True, tag=13, frozen=True):
    line: str
    answer: GpuAnswer


class GpuFailed(msgspec.Struct, array_like=True, tag=14, frozen=True):
    """The GPU failed and the process ends. What was under way is in ``lines``. Not an answer."""

    detail: str
    lines: tuple[str, ...]


class Notice(msgspec.Struct, array_like=True, tag=15, frozen=True):
    """Something an operator should read. Not an answer."""

    text: str


class RestartWanted(msgspec.Struct, array_like=True, tag=21, frozen=True):
    """The process serves well, and is to be started anew when it has no partitions. No answer."""


FromGpu = GpuReply | Starved | GpuFailed | Notice | RestartWanted

decode_to_gpu = msgspec.msgpack.Decoder[ToGpu](ToGpu).decode
decode_from_gpu = msgspec.msgpack.Decoder[FromGpu](FromGpu).decode
