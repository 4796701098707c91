"""The fake driver: a GPU of host memory with SMs, streams, graphs, faults and accounts."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from interlace.device.cuda.driver.api import (
    Atom,
    CopyGroup,
    CudaError,
    DeviceProperties,
    GreenContext,
    SmSplit,
)
from interlace.device.cuda.driver.api import DeviceMemory as MemoryInfo
from tests.device.cuda.fake.core import Core, Ran, find, take
from tests.device.cuda.fake.faults import Misuse
from tests.device.cuda.fake.kernels import Launch
from tests.device.cuda.fake.peer import FakePeer
from tests.device.cuda.fake.streams import Event, Stream

IMAGE: Final = b"fake cubin"
_GRANULE_SMS: Final = 8
_THREADS_MAX: Final = 1024
#: The word that a graph writes last is seen so long before the driver has ended the graph.
_TAIL_S: Final = 2e-3


class Resource(NamedTuple):
    """What stands for the driver's object: which split, which SMs."""

    split: int
    sms: frozenset[int]


def _by_memory(call: str) -> Callable[..., Any]:
    """A call that the memory carries out."""

    def carry_out(self: Core, *arguments: Any, **named: Any) -> Any:
        self._enter(call)
        return getattr(self._memory, call)(*arguments, **named)

    return carry_out


class FakeDriver(Core):
    """``Driver`` without a GPU; ``Core`` says what tests can do with it."""

    allocate, free = _by_memory("allocate"), _by_memory("free")
    allocate_mapped, free_mapped = _by_memory("allocate_mapped"), _by_memory("free_mapped")
    register, unregister = _by_memory("register"), _by_memory("unregister")
    ipc_handle, ipc_open = _by_memory("ipc_handle"), _by_memory("ipc_open")
    ipc_close = _by_memory("ipc_close")

    @property
    def board(self) -> DeviceProperties:
        return self._board

    def memory(self) -> MemoryInfo:
        self._enter("memory", in_capture=True)
        return MemoryInfo(self._memory.free_bytes, self._memory.total_bytes)

    def close(self) -> None:
        if self._faults.closed:
            return
        self._faults.closed = True
        self._streams.close()
        left = [] if self._faults.broken else self.leftovers()
        wrong = [*map(repr, self._faults.misuses), *left]
        self._memory.close()
        if wrong:
            raise Misuse("; ".join(wrong))

    def peer(self, place: int) -> FakePeer:
        self._enter("peer")
        return FakePeer(self, self.peers, place)

    def split(self, atom_sms: int, clusters: bool = True) -> SmSplit:
        self._enter("split")
        size = -(-atom_sms // _GRANULE_SMS) * _GRANULE_SMS
        if atom_sms <= 0 or size > self._board.sms or not (clusters or self.mixes):
            raise CudaError("cuDevSmResourceSplitByCount", "CUDA_ERROR_INVALID_VALUE")
        number, parts, end = next(self._numbers), list[frozenset[int]](), 0
        for sms in self.clusters if clusters else (self._board.sms,):
            begins = range(end, end + sms - size + 1, size)
            parts += [frozenset(range(begin, begin + size)) for begin in begins]
            end += sms
        rest = frozenset(range(self._board.sms)).difference(*parts)
        atoms = tuple(Atom(size, Resource(number, part)) for part in parts)
        left = Atom(len(rest), Resource(number, rest)) if rest else None
        return SmSplit(atoms, left, clusters)

    def green(self, atoms: Sequence[Atom]) -> GreenContext:
        self._enter("green")
        resources: list[Resource] = [atom.resource for atom in atoms]
        if not resources:
            raise CudaError("cuDevResourceGenerateDesc", "CUDA_ERROR_INVALID_VALUE")
        if len({one.split for one in resources}) > 1:
            raise CudaError("cuDevResourceGenerateDesc", "CUDA_ERROR_INVALID_RESOURCE_TYPE")
        if sum(len(one.sms) for one in resources) > len(sms := frozenset(_union(resources))):
            raise CudaError("cuGreenCtxCreate", "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION")
        if len(self._greens) >= self.greens_max:
            raise CudaError("cuGreenCtxCreate", "CUDA_ERROR_OUT_OF_MEMORY")
        granted = frozenset(sorted(sms)[: self.grant(len(sms))])
        handle = next(self._numbers)
        self._greens[handle] = granted
        return GreenContext(handle, len(granted))

    def destroy_green(self, green: GreenContext) -> None:
        self._enter("destroy_green")
        if any(stream.green == green.handle for stream in self._streams.all()):
            raise Misuse("a green context is destroyed before its streams: they leak")
        take(self._greens, green.handle, "cuGreenCtxDestroy")

    def enter(self, green: GreenContext | None) -> None:
        self._enter("enter")
        if green is not None:
            find(self._greens, green.handle, "cuCtxFromGreenCtx")
        self._contexts.current = None if green is None else green.handle

    def stream(self, green: GreenContext | None = None) -> int:
        self._enter("stream")
        sms = frozenset(range(self._board.sms))
        if green is not None:
            sms = find(self._greens, green.handle, "cuGreenCtxStreamCreate")
        handle = next(self._numbers)
        self._streams.add(Stream(handle, sms, None if green is None else green.handle))
        return handle

    def destroy_stream(self, stream: int) -> None:
        self._enter("destroy_stream")
        self._streams.remove(self._streams.of(stream, "cuStreamDestroy"))

    def synchronize(self, stream: int) -> None:
        self._enter("synchronize")
        one = self._streams.of(stream, "cuStreamSynchronize")
        self._streams.wait_until(lambda: not one.queue and not one.busy, "synchronize")
        self._enter("synchronize")

    def event(self, timing: bool = False) -> int:
        self._enter("event", in_capture=True)
        handle = next(self._numbers)
        self._events[handle] = Event(timing)
        return handle

    def destroy_event(self, event: int) -> None:
        self._enter("destroy_event", in_capture=True)
        take(self._events, event, "cuEventDestroy")

    def record(self, event: int, stream: int) -> None:
        self._enter("record")
        found = find(self._events, event, "cuEventRecord")
        self.peers.recorded(event, stream)
        found.recorded += 1
        number = found.recorded

        def reach() -> None:
            found.reached, found.at_s = number, time.perf_counter()

        self._submit(stream, "record", reach)

    def wait(self, stream: int, event: int, external: bool = False) -> None:
        self._enter("wait", in_capture=external, in_replay=external)
        found = find(self._events, event, "cuStreamWaitEvent")
        recording = self._recordings.current
        if external:
            if recording is None:
                raise CudaError("cuStreamWaitEvent", "CUDA_ERROR_INVALID_VALUE", "no capture")
            number = recording.latched.get(event, 0)
            self._submit(stream, "wait", lambda: self._reach(found, number), arguments=(event,))
            return
        number = found.recorded
        self._submit(stream, "wait", _pass, lambda: found.reached >= number)

    def _reach(self, event: Event, number: int) -> None:
        """The thread of a stream stands still inside a graph until an event has come so far."""
        over = lambda: event.reached >= number or self._faults.broken is not None  # noqa: E731
        self._streams.wait_until(over, "a wait in a graph")

    def idle(self, stream: int) -> bool:
        self._enter("idle")
        one = self._streams.of(stream, "cuStreamQuery")
        return not one.queue and not one.busy

    def ended(self, event: int) -> bool:
        found = self._events.get(event)
        if found is not None and not found.recorded:
            return True  # answered on the host, which does not look at the GPU for it
        self._enter("ended")
        found = find(self._events, event, "cuEventQuery")
        return found.reached == found.recorded

    def elapsed_ms(self, begin: int, end: int) -> float:
        self._enter("elapsed_ms")
        first, last = (find(self._events, one, "cuEventElapsedTime") for one in (begin, end))
        if not (first.timing and last.timing and first.recorded and last.recorded):
            raise CudaError("cuEventElapsedTime", "CUDA_ERROR_INVALID_HANDLE")
        if first.reached != first.recorded or last.reached != last.recorded:
            raise CudaError("cuEventElapsedTime", "CUDA_ERROR_NOT_READY")
        return (last.at_s - first.at_s) * 1000

    def load_kernels(self, image: bytes) -> int:
        self._enter("load_kernels")
        if image != IMAGE:
            raise CudaError("cuModuleLoadData", "CUDA_ERROR_INVALID_IMAGE")
        module = next(self._numbers)
        self._modules[module] = []
        return module

    def kernel(self, module: int, name: str) -> int:
        self._enter("kernel", in_capture=True)
        made = find(self._modules, module, "cuModuleGetFunction")
        if name not in self._emulated:
            raise CudaError("cuModuleGetFunction", "CUDA_ERROR_NOT_FOUND", name)
        handle = next(self._numbers)
        self._kernels[handle] = name
        made.append(handle)
        return handle

    def unload_kernels(self, module: int) -> None:
        self._enter("unload_kernels")
        for handle in take(self._modules, module, "cuModuleUnload"):
            del self._kernels[handle]

    def launch(
        self,
        kernel: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        stream: int,
        arguments: Sequence[int],
    ) -> None:
        self._enter("launch", in_capture=True, in_replay=True)
        name = find(self._kernels, kernel, "cuLaunchKernel")
        words = tuple(arguments)
        emulated, count = self._emulated[name]
        if len(words) != count or any(not 0 <= int(word) < 1 << 64 for word in words):
            raise Misuse(f"kernel {name} takes {count} words: {words}")
        threads = block[0] * block[1] * block[2]
        if min(*grid, *block) < 1 or threads > _THREADS_MAX:
            raise CudaError("cuLaunchKernel", "CUDA_ERROR_INVALID_VALUE", f"{grid}, {block}")
        sms = self._streams.of(stream, "cuLaunchKernel").sms

        def execute() -> None:
            self.trace.append(Ran(name, stream, sms, grid))
            emulated(Launch(self._memory, grid, block, sms), *words)
            time.sleep(self.cost_s(name, words, len(sms)))

        self._submit(stream, (name, grid, block), execute, arguments=words)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._enter("copy", in_capture=True, in_replay=True)

        def execute() -> None:
            self.peers.copied(target, nbytes, stream, self._memory.on_host(source))
            self._memory.copy(target, source, nbytes, by_kernel=False)

        self._submit(stream, "copy", execute, arguments=(target, source, nbytes))

    def copy_groups(self, groups: Sequence[CopyGroup], stream: int) -> None:
        self._enter("copy_groups")
        for group in groups:
            if group.after:
                self.wait(stream, group.after)
            for piece in group.pieces:
                self.copy(*piece, stream)
            if group.ready:
                self.record(group.ready, stream)

    def launch_graph(self, executable: int, stream: int) -> None:
        self._enter("launch_graph")
        graph = find(self._graphs, executable, "cuGraphLaunch")
        ticket = graph.issue(stream)
        awaited = [one.arguments[0] for one in graph.nodes if one.what == "wait"]
        latched = {event: self._events[event].recorded for event in awaited}

        def execute() -> None:
            try:
                self._replay(graph, latched)
            finally:
                if self._streams.pace == "threads":
                    time.sleep(_TAIL_S)
                graph.end(stream)

        def ready() -> bool:
            # Where streams have no threads, none can stand still inside a graph.
            over = all(self._events[one].reached >= latched[one] for one in latched)
            return graph.ended == ticket and (over or self._streams.pace == "threads")

        self._submit(stream, "graph", execute, ready)


def _pass() -> None:
    """What a stream does when it only waits."""


def _union(resources: Sequence[Resource]) -> Iterator[int]:
    return itertools.chain.from_iterable(one.sms for one in resources)
