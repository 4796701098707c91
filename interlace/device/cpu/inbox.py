"""What a worker is sent: work in order; freed memory and cancellations as soon as they are read."""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable
from threading import Condition
from time import monotonic

from interlace.device.process.output_arena import OutputBlocks
from interlace.device.process.wire import (
    CallAnswered,
    CancelRequest,
    FreeBatches,
    FromWorker,
    RunBatch,
    Starved,
    ToWorker,
)
from interlace.shm.arena import Arena
from interlace.shm.frame_socket import BlockingFrameSocket


class Inbox:
    """Frames of the main process.

    Any thread may wait for something that they say. One of those that wait reads for all.
    """

    def __init__(
        self, frames: BlockingFrameSocket[FromWorker, ToWorker], arena: Arena, patience_s: float
    ) -> None:
        """A batch waits for output memory in ``arena`` at most ``patience_s``."""
        self.blocks = OutputBlocks(arena, self.wait_for_memory)
        self._frames = frames
        self._patience_s = patience_s
        self._backlog: deque[ToWorker] = deque()
        self._changed = Condition()
        self._reading = self._closed = False
        self._asked: set[int] = set()  #: requests, by id, whose batches have not ended
        self._cancelled: set[int] = set()  #: those of them that were cancelled

    def next(self) -> ToWorker | None:
        """The next frame; ``None`` when the main process closed its end."""
        with self._changed:
            while not (self._backlog or self._closed):
                if self._reading:
                    self._changed.wait()
                else:
                    self._read()
            return self._backlog.popleft() if self._backlog else None

    @property
    def holds_answers(self) -> bool:
        """Whether answers to calls are read, and nobody has taken them yet."""
        return any(isinstance(frame, CallAnswered) for frame in tuple(self._backlog))

    def ended(self, run: RunBatch) -> None:
        """Nobody asks any more whether requests of that batch are cancelled."""
        with self._changed:
            for head in run.heads:
                self._asked.discard(head.request)
                self._cancelled.discard(head.request)

    def cancel(self, request: int) -> None:
        """The responses to a request are for nobody."""
        with self._changed:
            self._cancelled |= self._asked & {request}

    def cancelled(self, request: int) -> bool:
        """Whether the client of a request went away, as far as is known now.

        Raises:
            ConnectionError: the main process closed its end.
        """
        cancelled = self._cancelled
        return self._wait(lambda: request in cancelled or self._check_open(), 0.0)

    def wait_for_memory(self, frees: int) -> bool:
        """Wait until memory was freed more than ``frees`` times; ``False`` when patience is over.

        Raises:
            ConnectionError: the main process closed its end.
        """
        self._frames.send(Starved())
        blocks = self.blocks
        return self._wait(lambda: blocks.frees > frees or self._check_open(), self._patience_s)

    def _check_open(self) -> bool:
        if self._closed:
            raise ConnectionError("the main process closed its end")
        return False

    def _wait(self, over: Callable[[], bool], limit_s: float) -> bool:
        """Wait until something is over, and read meanwhile if nobody does; whether it is."""
        until = monotonic() + limit_s
        with self._changed:
            while not over():
                left = max(0.0, until - monotonic())
                if not self._reading:
                    if not self._read(left):
                        return over()
                elif left:
                    self._changed.wait(left)
                else:
                    return False
        return True

    def _read(self, limit_s: float | None = None) -> bool:
        """Read a frame; ``False`` if none came in time. Others may wait meanwhile."""
        self._reading = True
        self._changed.release()
        try:
            if limit_s is not None and not _readable(self._frames, limit_s):
                return False
            frame = self._frames.receive()
        finally:
            self._changed.acquire()
            self._reading = False
            self._changed.notify_all()
        self._take(frame)
        return True

    def _take(self, frame: ToWorker | None) -> None:
        if frame is None:
            self._closed = True
        elif isinstance(frame, FreeBatches):
            self.blocks.free(frame.batches)
        elif isinstance(frame, CancelRequest):
            self._cancelled |= self._asked & {frame.request}
        else:
            if isinstance(frame, RunBatch):
                self.blocks.free(frame.freed)
                self._asked.update([head.request for head in frame.heads])
            elif isinstance(frame, CallAnswered) and frame.ended:
                self.blocks.free((frame.call,))  # its inputs
            self._backlog.append(frame)


def _readable(frames: BlockingFrameSocket[FromWorker, ToWorker], wait_s: float) -> bool:
    ready = select.poll()
    ready.register(frames.fileno(), select.POLLIN)
    return bool(ready.poll(wait_s * 1000.0))
