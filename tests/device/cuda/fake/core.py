"""What the fake driver is made of, and what tests may do with it beside the contract."""

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeVar

from interlace.device.cuda.driver.api import CudaError, DeviceProperties
from tests.device.cuda.fake.faults import Faults, Misuse
from tests.device.cuda.fake.handles import Libraries
from tests.device.cuda.fake.kernels import OURS, Emulated
from tests.device.cuda.fake.memory import Memory
from tests.device.cuda.fake.peer import PeerGpus
from tests.device.cuda.fake.streams import (
    Event,
    Graph,
    Operation,
    Recording,
    Recordings,
    Streams,
    node,
)

Cost = Callable[[str, Sequence[int], int], float]
H100: Final = DeviceProperties("Fake H100", "GPU-fake-0", (9, 0), 132, 80 << 30, 13000)


#: Calls that wait for the whole GPU (CUDA Programming Guide, implicit synchronisation).
_SYNCHRONISING: Final = ("free", "free_mapped", "allocate_mapped", "unregister", "ipc_close")


class Ran(NamedTuple):
    """One kernel that ran, and the SMs that it might use."""

    kernel: str
    stream: int
    sms: frozenset[int]
    grid: tuple[int, int, int]


class Contexts(threading.local):
    """The green context that is current on each thread; ``None``: the primary one."""

    current: int | None = None


class Core:
    """The state of a fake GPU. For tests:

    * ``trace``: the kernels that ran and on which SMs; ``calls``: how often each was called;
    * ``fail(call, name)``: the next such call fails; ``fail("run", name)``: the next GPU work;
    * ``pace``: "at once", "held" (until ``run``) or "threads"; ``hold``/``let_go`` one stream;
    * ``first_use(kernel)``: a body launches a library's kernel, which is loaded then if it is new;
    * ``stalls``: calls that wait until the GPU has ended all, made while graphs ran;
    * ``others(nbytes)``: memory that other processes hold; ``grant``: SMs granted for SMs asked;
    * ``cost_s``: how long a kernel of a name and arguments takes on so many SMs, else no time;
    * ``clusters``: SMs of each part of the GPU that clusters keep within (its GPCs); ``mixes``:
      whether atoms may be made across them; ``greens_max``: green contexts at a time;
    * ``peers``: other GPUs that the process sees, and what came over whose link;
    * ``close`` raises ``Misuse`` if anything is left over, or was misused earlier.
    """

    def __init__(self, board: DeviceProperties = H100, pace: str = "at once") -> None:
        self.trace: list[Ran] = []
        self.grant: Callable[[int], int] = lambda sms: sms
        self.cost_s: Cost = lambda name, arguments, sms: 0.0
        self.clusters: tuple[int, ...] = (board.sms,)
        self.mixes = True
        self.greens_max = 1 << 20
        self._board = board
        self._memory = Memory(board.memory_bytes)
        self._faults = Faults()
        self._streams = Streams(pace, self._failed)
        self._numbers = itertools.count(0x1000, 8)
        self._greens: dict[int, frozenset[int]] = {}
        self._events: dict[int, Event] = {}
        self._modules: dict[int, list[int]] = {}
        self._kernels: dict[int, str] = {}
        self._graphs: dict[int, Graph] = {}
        self._emulated: dict[str, tuple[Emulated, int]] = dict(OURS)
        self.stalls: Counter[str] = Counter()
        self._loaded: set[str] = set()
        self._recordings = Recordings()
        self.libraries = Libraries(self)
        self.peers = PeerGpus()
        self._contexts = Contexts()
        self._capturing = threading.Lock()

    # ------------------------------------------------------------------------ for tests alone
    @property
    def calls(self) -> dict[str, int]:
        return self._faults.calls

    @property
    def misuses(self) -> list[Exception]:
        return self._faults.misuses

    def fail(self, call: str, name: str, skip: int = 0, times: int = 1) -> None:
        self._faults.plan(call, name, skip, times)

    def others(self, nbytes: int) -> None:
        self._memory.others_bytes = nbytes

    def first_use(self, kernel: str) -> None:
        """Raises CudaError inside a capture that allows no loading, and loads nothing then."""
        recording = self._recordings.current
        if kernel not in self._loaded and recording is not None and not recording.lax:
            raise CudaError("cuLaunchKernel", "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", kernel)
        self._loaded.add(kernel)

    def synchronised(self, call: str) -> None:
        """The GPU ends what runs, and begins nothing behind it meanwhile."""
        if any(graph.issued != graph.ended for graph in self._graphs.values()):
            self.stalls[call] += 1

    def emulate(self, name: str, kernel: Emulated, arguments: int) -> None:
        """Know one more kernel: called with ``Launch`` and its arguments."""
        self._emulated[name] = (kernel, arguments)

    def hold(self, stream: int) -> None:
        self._streams.of(stream, "hold").held = True

    def let_go(self, stream: int) -> None:
        self._streams.of(stream, "let_go").held = False
        self._streams.settle()

    def run(self, stream: int, count: int | None = None) -> int:
        """Run held work; how many operations there were."""
        return self._streams.run(stream, count)

    def context_of(self, stream: int) -> int | None:
        """The green context of a stream; ``None`` if it has none."""
        return self._streams.of(stream, "cuStreamGetCtx").green

    @property
    def current(self) -> int | None:
        """The green context that is current on this thread; ``None``: the primary one."""
        return self._contexts.current

    @property
    def replaying(self) -> bool:
        """Whether this thread replays a graph."""
        recording = self._recordings.current
        return recording is not None and recording.replays

    def sms_of(self, stream: int) -> frozenset[int]:
        return self._streams.of(stream, "sms_of").sms

    def leftovers(self) -> list[str]:
        """Everything made and not destroyed, in words."""
        kinds = (
            ("stream", len(self._streams.all())),
            ("event", len(self._events)),
            ("green context", len(self._greens)),
            ("module", len(self._modules)),
            ("graph", len(self._graphs)),
        )
        return self._memory.leaks() + [f"{count} {kind}(s)" for kind, count in kinds if count]

    # ------------------------------------------------------------------ for the fake capturer
    @contextmanager
    def recording(self, stream: int, lax: bool = False) -> Iterator[Recording]:
        """Record this thread's launches on ``stream`` instead of running them.

        Kernels may be loaded meanwhile if it is ``lax``.
        """
        self._enter("launch")
        self._streams.of(stream, "cuStreamBeginCapture")
        if not self._capturing.acquire(blocking=False):
            raise Misuse("two captures at once in one process")
        try:
            self._recordings.current = Recording(stream, lax=lax)
            yield self._recordings.current
        finally:
            self._recordings.current = None
            self._capturing.release()

    def add_graph(self, graph: Graph) -> int:
        handle = next(self._numbers)
        graph.address = self._memory.allocate(graph.nbytes)
        self._graphs[handle] = graph
        return handle

    def remove_graph(self, executable: int) -> None:
        graph = take(self._graphs, executable, "cuGraphExecDestroy")
        if graph.issued != graph.ended and self._faults.broken is None:
            raise Misuse("a graph is destroyed while it runs")
        self._memory.free(graph.address)

    # -------------------------------------------------------------------------------- inside
    def _enter(self, call: str, in_capture: bool = False, in_replay: bool = False) -> None:
        self._faults.enter(call)
        if call in _SYNCHRONISING:
            self.synchronised(call)
        recording = self._recordings.current
        if recording is not None and recording.replays and not in_replay:
            raise Misuse(f"{call} inside a body: a graph replays launches and copies alone")
        if recording is not None and not in_capture:
            raise CudaError(call, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED")

    def _submit(
        self,
        stream: int,
        what: object,
        execute: Callable[[], Any],
        ready: Callable[[], bool] = lambda: True,
        arguments: tuple[int, ...] = (),
    ) -> None:
        one = self._streams.of(stream, str(what))
        recording = self._recordings.current
        if recording is not None:
            recording.add(node(self._memory, what, stream, arguments))
            if recording.replays:
                execute()
            return

        def run() -> None:
            if self._faults.broken is None:
                self._faults.enter("run")
                execute()

        self._streams.submit(one, Operation(ready, run))

    def _replay(self, graph: Graph, latched: dict[int, int]) -> None:
        recording = Recording(graph.pool.stream, graph.nodes, latched=latched)
        self._recordings.current = recording
        try:
            with self.libraries.on(graph.pool.stream):
                graph.body()
            recording.finish()
        finally:
            self._recordings.current = None

    def _failed(self, error: Exception) -> None:
        self._faults.failed(error)
        self._streams.drop()


T = TypeVar("T")


def find(table: dict[int, T], handle: int, call: str) -> T:
    """What a handle stands for."""
    found = table.get(handle)
    if found is None:
        raise CudaError(call, "CUDA_ERROR_INVALID_HANDLE", f"{handle:#x}")
    return found


def take(table: dict[int, T], handle: int, call: str) -> T:
    """The same, and the handle is gone."""
    find(table, handle, call)
    return table.pop(handle)
