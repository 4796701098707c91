"""A library as cuDNN is: a handle for each thread, that takes streams of its own context alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.device.cuda.fake.faults import Misuse

if TYPE_CHECKING:
    from tests.device.cuda.fake.core import Core


@dataclass(eq=False)
class Handle:
    """Made in a context: a green one, or ``None`` for the primary one."""

    context: int | None


@dataclass(eq=False)
class Window:
    """The handle of one thread. At its end it goes to the next new one, as in torch's pool."""

    pool: list[Handle]
    handle: Handle

    def __del__(self) -> None:
        self.pool.append(self.handle)


class Here(threading.local):
    """What a thread's work goes to."""

    libraries: Libraries | None = None
    stream: int = 0
    window: Window | None = None


HERE = Here()


@dataclass(eq=False)
class Libraries:
    """The libraries of one process.

    ``lenient``: a handle takes any stream. ``refuse_green``: none takes a green context's.
    """

    gpu: Core
    lenient: bool = False
    refuse_green: bool = False
    pool: list[Handle] = field(default_factory=list)

    @contextmanager
    def on(self, stream: int) -> Iterator[None]:
        """This thread's work goes to a stream."""
        before = HERE.libraries, HERE.stream
        HERE.libraries, HERE.stream = self, stream
        try:
            yield
        finally:
            HERE.libraries, HERE.stream = before

    def call(self) -> None:
        """What an operation of the library does first.

        Raises:
            RuntimeError: the stream is of another context than the handle, in torch's words.
        """
        if self.gpu.replaying:
            return  # the graph has the library's kernels
        window = HERE.window
        if window is None or window.pool is not self.pool:
            made = self.pool.pop() if self.pool else Handle(self.gpu.current)
            window = HERE.window = Window(self.pool, made)
        green = self.gpu.context_of(HERE.stream)
        own = self.lenient or window.handle.context == green
        if not own or (self.refuse_green and green is not None):
            raise RuntimeError("cuDNN error: CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH")


def convolution() -> None:
    """An operation of the library, on this thread's stream.

    Raises:
        RuntimeError: the stream is of another context than the thread's handle.
        Misuse: work of torch on no lane.
    """
    if HERE.libraries is None:
        raise Misuse("a library is called outside of any stream")
    HERE.libraries.call()
