"""Streams of the fake GPU: work in order, at once, when told, or on threads."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from interlace.device.cuda.driver.api import CudaError
from tests.device.cuda.fake.faults import Misuse
from tests.device.cuda.fake.memory import Memory

WAIT_S = 20.0


class Operation(NamedTuple):
    """``run`` is called once ``ready`` is true and what came before it in its stream has ended."""

    ready: Callable[[], bool]
    run: Callable[[], None]


@dataclass
class Event:
    """Counts how often it was recorded, and how many of those have been reached."""

    timing: bool
    recorded: int = 0
    reached: int = 0
    at_s: float = 0.0


@dataclass(eq=False)
class Stream:
    """One queue. ``sms`` are the numbers of the SMs that its kernels may run on."""

    handle: int
    sms: frozenset[int]
    green: int | None
    queue: deque[Operation] = field(default_factory=deque)
    busy: bool = False
    held: bool = False
    thread: threading.Thread | None = None


class Streams:
    """Executes operations. One lock; operations run outside it.

    ``pace``: "at once" runs work inside the call that submits it, as far as it can;
    "held" keeps it until ``run``; "threads" gives each stream a thread, as a GPU would.
    """

    def __init__(self, pace: str, on_failure: Callable[[Exception], None]) -> None:
        self.pace = pace
        self.changed = threading.Condition()
        self._on_failure = on_failure
        self._streams: dict[int, Stream] = {}
        self._closed = False

    def add(self, stream: Stream) -> None:
        stream.held = self.pace == "held"
        self._streams[stream.handle] = stream
        if self.pace == "threads":
            stream.thread = threading.Thread(target=self._serve, args=(stream,), daemon=True)
            stream.thread.start()

    def of(self, handle: int, call: str) -> Stream:
        stream = self._streams.get(handle)
        if stream is None:
            raise CudaError(call, "CUDA_ERROR_INVALID_HANDLE", f"stream {handle:#x}")
        return stream

    def all(self) -> list[Stream]:
        return list(self._streams.values())

    def submit(self, stream: Stream, operation: Operation) -> None:
        with self.changed:
            stream.queue.append(operation)
            self.changed.notify_all()
        if self.pace != "threads":
            self.settle()

    def settle(self) -> None:
        """Run what is ready in streams that are not held."""
        while (found := self._take(lambda stream: not stream.held)) is not None:
            self._perform(*found)

    def run(self, handle: int, count: int | None = None) -> int:
        """Run up to ``count`` operations of a held stream; how many there were to run."""
        stream, done = self.of(handle, "run"), 0
        while count is None or done < count:
            found = self._take(lambda one: one is stream)
            if found is None:
                break
            self._perform(*found)
            done += 1
        self.settle()
        return done

    def wait_until(self, over: Callable[[], bool], what: str) -> None:
        """Block until another thread brings it about.

        Raises:
            Misuse: nobody does.
        """
        with self.changed:
            if not self.changed.wait_for(over, WAIT_S):
                raise Misuse(f"{what}: it never ended in {WAIT_S} s")

    def remove(self, stream: Stream) -> None:
        if stream.queue or stream.busy:
            raise Misuse(f"stream {stream.handle:#x} is destroyed with work in it")
        with self.changed:
            del self._streams[stream.handle]
            self.changed.notify_all()

    def close(self) -> None:
        """Start nothing any more, and wait for what runs."""
        with self.changed:
            self._closed = True
            self.changed.notify_all()
        self.wait_until(lambda: not any(one.busy for one in self._streams.values()), "close")

    def drop(self) -> None:
        """Forget all that is queued: the GPU failed."""
        with self.changed:
            for stream in self._streams.values():
                stream.queue.clear()
            self.changed.notify_all()

    def _take(self, allowed: Callable[[Stream], bool]) -> tuple[Stream, Operation] | None:
        with self.changed:
            for stream in self._streams.values():
                if allowed(stream) and not stream.busy and _startable(stream):
                    stream.busy = True
                    return stream, stream.queue.popleft()
            return None

    def _perform(self, stream: Stream, operation: Operation) -> None:
        try:
            operation.run()
        except Exception as error:
            self._on_failure(error)
        finally:
            with self.changed:
                stream.busy = False
                self.changed.notify_all()

    def _serve(self, stream: Stream) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self._over(stream) or self._its_turn(stream))
                if self._over(stream):
                    return
                stream.busy = True
                operation = stream.queue.popleft()
            self._perform(stream, operation)

    def _over(self, stream: Stream) -> bool:
        return self._closed or self._streams.get(stream.handle) is not stream

    @staticmethod
    def _its_turn(stream: Stream) -> bool:
        # Another thread may run what was held.
        return not stream.held and not stream.busy and _startable(stream)


def _startable(stream: Stream) -> bool:
    return bool(stream.queue) and stream.queue[0].ready()


_SMALL = 1 << 32
_ELSEWHERE = -1


class Node(NamedTuple):
    """One recorded launch or copy. Addresses of the framework's own tensors are ``_ELSEWHERE``:

    a CPU framework allocates anew in each replay, where a GPU's graph keeps its addresses.
    """

    what: object
    stream: int
    arguments: tuple[int, ...]


def node(memory: Memory, what: object, stream: int, arguments: tuple[int, ...]) -> Node:
    kept = (one if one < _SMALL or memory.known(one) else _ELSEWHERE for one in arguments)
    return Node(what, stream, tuple(kept))


@dataclass(eq=False)
class Pool:
    """Memory that graphs of one lane share: they must never run side by side."""

    stream: int
    pending: dict[int, int] = field(default_factory=dict)  #: launches not ended, by stream


@dataclass(eq=False)
class Graph:
    """An executable graph. ``sms`` are those of the stream that it was captured on."""

    body: Callable[[], None]
    pool: Pool
    nodes: list[Node]
    nbytes: int
    address: int = 0  #: its share of device memory
    issued: int = 0
    ended: int = 0

    def issue(self, stream: int) -> int:
        """A ticket: launches of one graph run one after the other."""
        if any(count for other, count in self.pool.pending.items() if other != stream):
            raise Misuse("two graphs of one memory pool on two streams at once")
        self.pool.pending[stream] = self.pool.pending.get(stream, 0) + 1
        self.issued += 1
        return self.issued - 1

    def end(self, stream: int) -> None:
        self.pool.pending[stream] -= 1
        self.ended += 1


class Recording:
    """What one thread captures or replays just now, on one stream.

    ``latched`` says up to which record of each event a replay waits: the last before its launch.
    """

    def __init__(
        self,
        stream: int,
        expected: list[Node] | None = None,
        lax: bool = False,
        latched: dict[int, int] | None = None,
    ) -> None:
        self.stream = stream
        self.lax = lax
        self.latched = latched or {}
        self.nodes: list[Node] = []
        self._expected = expected

    @property
    def replays(self) -> bool:
        return self._expected is not None

    def add(self, one: Node) -> None:
        if one.stream != self.stream:
            raise Misuse(f"work on stream {one.stream:#x} during a capture on {self.stream:#x}")
        if self._expected is not None:
            index = len(self.nodes)
            if index >= len(self._expected) or self._expected[index] != one:
                known = self._expected[index] if index < len(self._expected) else "nothing"
                raise Misuse(f"a graph keeps what was captured: {known}, replayed: {one}")
        self.nodes.append(one)

    def finish(self) -> None:
        if self._expected is not None and len(self.nodes) != len(self._expected):
            raise Misuse(f"{len(self.nodes)} nodes replayed of {len(self._expected)} captured")


class Recordings(threading.local):
    """The recording of each thread."""

    current: Recording | None = None
