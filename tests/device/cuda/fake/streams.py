"""Streams of the fake GPU: work in order, at once, when told, or on threads."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from interlace.device.cuda.driver.api import CudaError
from tests.device.cuda.fake.misuse import Misuse

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
