"""The contract of the driver, and how its calls fail. Handles and addresses are integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

from interlace.device.process.error_text import ReadableError


class DeviceProperties(NamedTuple):
    """One GPU as the driver describes it."""

    name: str
    uuid: str
    capability: tuple[int, int]
    sms: int
    memory_bytes: int
    driver: int  #: version as the driver counts it, 13000 for 13.0


class DeviceMemory(NamedTuple):
    """Device memory as ``cuMemGetInfo`` counts it, all processes together."""

    free_bytes: int
    total_bytes: int


class MappedBlock(NamedTuple):
    """Page-locked memory: where the host sees it, and where the GPU does."""

    host: int
    device: int
    nbytes: int


class Atom(NamedTuple):
    """A group of SMs that is never cut; ``resource`` is the driver's own object."""

    sms: int
    resource: Any


class SmSplit(NamedTuple):
    """All SMs of a GPU in atoms of one size and a rest, which is an atom too if it has SMs."""

    atoms: tuple[Atom, ...]
    rest: Atom | None
    clusters: bool = True  #: whether each atom can run clusters as the whole GPU does


class GreenContext(NamedTuple):
    """A green context and the SMs it was granted, read back."""

    handle: int
    sms: int


Piece = tuple[int, int, int]  #: target, source, bytes


class CopyGroup(NamedTuple):
    """Copies that begin after an event and end with one; 0 stands for no event.

    ``pieces`` are between any two addresses that the GPU knows.
    """

    after: int
    pieces: Sequence[Piece]
    ready: int


class PeerGpu(Protocol):
    """Another GPU as a process has it beside its own: its link to the host, and memory to pass on.

    Every call raises ``CudaError``. Its addresses are known to the process's own GPU, which reads
    them in place, and streams of either wait for events of the other. Events are those of its own
    streams.
    """

    def allocate(self, nbytes: int) -> int: ...
    def free(self, address: int) -> None: ...
    def stream(self) -> int: ...
    def destroy_stream(self, stream: int) -> None: ...
    def event(self) -> int: ...
    def destroy_event(self, event: int) -> None: ...
    def copy_groups(self, groups: Sequence[CopyGroup], stream: int) -> None:
        """As ``Driver.copy_groups``, on a stream of this GPU: from the host over its own link."""

    def synchronize(self, stream: int) -> None: ...
    def close(self) -> None:
        """Let go of its primary context; everything made here is destroyed before."""


class Driver(Protocol):
    """The driver calls of one process on one GPU, whose primary context is retained meanwhile.

    Every call raises ``CudaError``. Streams never wait for the legacy default stream. Work reaches
    the SMs of a green context by the stream alone; it need not be current.
    """

    @property
    def board(self) -> DeviceProperties: ...
    def memory(self) -> DeviceMemory: ...
    def close(self) -> None:
        """Let go of the primary context; everything made here is destroyed before."""

    # ------------------------------------------------------------------------------------ memory
    def allocate(self, nbytes: int) -> int:
        """Device memory."""

    def free(self, address: int) -> None: ...
    def allocate_mapped(self, nbytes: int) -> MappedBlock:
        """Page-locked host memory that the GPU reads and writes in place, for all contexts."""

    def free_mapped(self, mapped: MappedBlock) -> None: ...
    def register(self, host: int, nbytes: int, read_only: bool = False) -> MappedBlock:
        """Page-lock and map memory that the process has already, whole pages of it."""

    def unregister(self, mapped: MappedBlock) -> None: ...
    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Between any two addresses that the GPU knows, in stream order, by a copy engine."""

    def copy_groups(self, groups: Sequence[CopyGroup], stream: int) -> None:
        """Enqueue all these copies in order, in one call: a load takes dozens of calls otherwise.

        Copies before one that fails are enqueued.
        """

    def peer(self, place: int) -> PeerGpu:
        """The GPU that this process sees ``place`` places behind its own, 1 for the next one.

        Memory that is page-locked afterwards is so for both.

        Raises:
            CudaError: there is none, or its memory cannot be read from this one's.
        """

    def ipc_handle(self, address: int) -> bytes:
        """What another process opens the allocation at ``address`` with."""

    def ipc_open(self, handle: bytes) -> int: ...
    def ipc_close(self, address: int) -> None: ...

    # --------------------------------------------------------------------------------------- SMs
    def split(self, atom_sms: int, clusters: bool = True) -> SmSplit:
        """All SMs in atoms of ``atom_sms``. Atoms of one split may be put together again.

        With ``clusters`` each atom can run clusters of thread blocks as the whole GPU does; where
        parts of the GPU differ in size that leaves more SMs over.
        """

    def green(self, atoms: Sequence[Atom]) -> GreenContext:
        """A green context over atoms of one split; other contexts may hold the same SMs."""

    def destroy_green(self, green: GreenContext) -> None:
        """After its streams are destroyed."""

    def enter(self, green: GreenContext | None) -> None:
        """Make a green context current on this thread from now on; ``None``: the primary one.

        Libraries that keep a handle for each thread make it in the context that is current then.
        """

    # ----------------------------------------------------------------------- streams and events
    def stream(self, green: GreenContext | None = None) -> int:
        """A non-blocking stream, of a green context or of all SMs."""

    def destroy_stream(self, stream: int) -> None: ...
    def synchronize(self, stream: int) -> None: ...
    def idle(self, stream: int) -> bool:
        """True if all that the stream holds has ended; raises if the GPU failed meanwhile."""

    def event(self, timing: bool = False) -> int: ...
    def destroy_event(self, event: int) -> None: ...
    def record(self, event: int, stream: int) -> None: ...
    def wait(self, stream: int, event: int, external: bool = False) -> None:
        """Later work of ``stream`` begins after ``event``.

        An ``external`` wait, inside a capture alone, is part of the graph: each launch waits there
        for what had been recorded last when it was launched, by whatever stream.
        """

    def ended(self, event: int) -> bool:
        """True if what was recorded has ended; raises if the GPU failed meanwhile.

        An event that was never recorded has ended, whatever became of the GPU.
        """

    def elapsed_ms(self, begin: int, end: int) -> float: ...

    # --------------------------------------------------------------------------- kernels, graphs
    def load_kernels(self, image: bytes) -> int:
        """A module from a cubin."""

    def kernel(self, module: int, name: str) -> int: ...
    def unload_kernels(self, module: int) -> None: ...
    def launch(
        self,
        kernel: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        stream: int,
        arguments: Sequence[int],
    ) -> None:
        """Launch a kernel whose arguments are all 64-bit words; recorded if the stream captures."""

    def launch_graph(self, executable: int, stream: int) -> None:
        """The SMs are those of the streams that it was captured on, not of ``stream``."""


#: After these the context is lost: every later call fails the same way until the process ends.
_STICKY: Final = frozenset(
    {
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "CUDA_ERROR_LAUNCH_TIMEOUT",
        "CUDA_ERROR_ASSERT",
        "CUDA_ERROR_HARDWARE_STACK_ERROR",
        "CUDA_ERROR_ILLEGAL_INSTRUCTION",
        "CUDA_ERROR_MISALIGNED_ADDRESS",
        "CUDA_ERROR_INVALID_ADDRESS_SPACE",
        "CUDA_ERROR_INVALID_PC",
        "CUDA_ERROR_LAUNCH_FAILED",
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "CUDA_ERROR_CONTAINED",
        "CUDA_ERROR_MPS_CLIENT_TERMINATED",
        "CUDA_ERROR_MPS_SERVER_NOT_READY",
        "CUDA_ERROR_UNKNOWN",
    }
)

_ADVICE: Final = {
    "CUDA_ERROR_NO_DEVICE": "is the GPU visible here (nvidia-smi, CUDA_VISIBLE_DEVICES)?",
    "CUDA_ERROR_OUT_OF_MEMORY": "load fewer or smaller models on this GPU",
    "CUDA_ERROR_NOT_SUPPORTED": "the driver or the GPU does not have this",
    "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION": "the SMs cannot be grouped that way",
}


class CudaError(ReadableError):
    """A driver call failed.

    Whatever works on a GPU may raise it; docstrings name it where there is more to say.
    ``name`` is the driver's name of the error. ``sticky``: the process must be started anew.
    """

    def __init__(self, call: str, name: str, detail: str = "") -> None:
        advice = _ADVICE.get(name, "")
        words = ": ".join(part for part in (f"{call} failed", name, detail, advice) if part)
        super().__init__(words)
        self.call = call
        self.name = name

    @property
    def sticky(self) -> bool:
        return self.name in _STICKY
