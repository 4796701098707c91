"""The main process's side of one worker: questions in order, answers in order, its death."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from interlace.core.messages import Failure
from interlace.device.process.pending import PendingRequest, PendingRequests
from interlace.device.process.spawner import SpawnCallbacks
from interlace.shm.frame_socket import AsyncFrameSocket, Decode, frame_pair

To = TypeVar("To")
From = TypeVar("From")
A = TypeVar("A")

_STATUS_S: Final = 0.25  #: how long to wait for the reason of a death


class ProcessSpawner(Protocol):
    """Starts processes; nothing here blocks."""

    def spawn(self, name: str, descriptor: int, callbacks: SpawnCallbacks) -> None:
        """One that talks over ``descriptor``, which must stay open until it is there."""


class FrameProtocol(NamedTuple, Generic[From, A]):
    """How a worker is understood: frames from bytes, and what a frame answers.

    ``answer`` gives the line whose first open question it answers; ``None`` for what nobody asked,
    which it has taken care of.
    """

    decode: Decode[From]
    answer: Callable[[From], tuple[str, A] | None]


class WorkerLink(Generic[To, From, A]):
    """One worker process. ``on_dead`` is called once, after every open question got a failure.

    The failure is innocent if the worker was killed from outside.

    A worker that does not answer within a question's limit, counted from when it could begin, is
    killed. Questions of one line are answered in order; a worker that does one thing at a time has
    one line.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str,
        protocol: FrameProtocol[From, A],
        on_dead: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._name = name
        self._protocol = protocol
        self._on_dead = on_dead
        self._questions: PendingRequests[A] = PendingRequests(
            loop, lambda late: self.kill(f"killed: {late}")
        )
        self._frames: AsyncFrameSocket[To, From] | None = None
        self._child: socket.socket | None = None
        self._status: int | None = None
        self._ended = False
        self._cause = ""
        self._innocent = False
        self.pid: int | None = None
        self.dead = False

    def start(self, spawner: ProcessSpawner, setup: To, question: PendingRequest[A]) -> None:
        """Start the worker and send it its setup; the answer is the first of line "".

        Raises:
            OSError: no file descriptor is left.
        """
        ours, self._child = frame_pair()
        decode = self._protocol.decode
        self._frames = AsyncFrameSocket(self._loop, ours, decode, self._heard, self._closed)
        self.ask(setup, question)
        spawner.spawn(self._name, self._child.fileno(), SpawnCallbacks(self._forked, self._exited))

    def ask(self, frame: To, question: PendingRequest[A], line: str = "") -> bool:
        """Send a frame that has an answer; ``False`` if it was not sent, and will be answered."""
        if self.dead or self._frames is None:
            failure = Failure(f"{self._name}: {self._cause}", fatal=True)
            self._loop.call_soon(question.answer, failure)
            return False
        try:
            self._frames.send(frame)
        except (ValueError, BufferError) as error:
            self._loop.call_soon(question.answer, Failure(f"{self._name}: {error}"))
            return False
        self._questions.add(line, question)
        return True

    def tell(self, frame: To, descriptor: int | None = None) -> None:
        """Send a frame that has no answer, and a descriptor with it, as ``AsyncFrameSocket``."""
        if self._frames is not None:
            with contextlib.suppress(BufferError):  # a hung worker is about to be killed
                self._frames.send(frame, descriptor)

    def forget(self, line: str) -> None:
        """Nothing more is asked in a line that has nothing open."""
        self._questions.forget(line)

    def extend(self, line: str, by_s: float) -> None:
        """Allow the line's current request so much longer: it waits for replies to be delivered."""
        self._questions.extend(line, by_s)

    def finish(self) -> None:
        """Let the worker end after what it was asked."""
        if self._frames is not None:
            self._frames.finish()

    def kill(self, cause: str, innocent: bool = False) -> None:
        """Kill the worker; its death is reported with this cause, as no fault of what it does."""
        self._innocent = self._innocent or innocent
        self._cause = self._cause or cause
        if self.pid is not None and self._status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        if not self._ended:
            self._end_soon()

    def close(self, cause: str, kill: bool = True) -> None:
        """Report the worker's death now: kill it, or let it end by itself at the closed socket."""
        if self.dead:
            return
        if kill:
            self.kill(cause)
        self._cause = self._cause or cause
        self._die()

    def _heard(self, frame: From) -> None:
        answer = self._protocol.answer(frame)
        if answer is None:
            return
        question = self._questions.answered(answer[0])
        if self._child is not None:
            self._let_go_of_child()
        question.answer(answer[1])

    # ------------------------------------------------------------------------------------- death

    def _forked(self, pid: int) -> None:
        self.pid = pid
        self._let_go_of_child()
        if self.dead or self._cause:
            self.kill(self._cause)

    def _exited(self, status: int | None) -> None:
        if status is None and self.pid is not None:
            return  # the fork server died, not the worker
        if status is None:
            self._cause = self._cause or "the fork server died before the worker started"
        self._status = status
        self._let_go_of_child()
        if self._ended:
            self._die()
        else:
            self._end_soon()

    def _closed(self) -> None:
        if self._status is not None:
            self._die()
        elif not self._ended:
            self._end_soon()

    def _end_soon(self) -> None:
        # What the worker sent before it died is read first, and its exit status is on its way.
        self._ended = True
        self._loop.call_later(_STATUS_S, self._die)

    def _die(self) -> None:
        if self.dead:
            return
        self.dead = True
        # Nobody here sent it: it was the kernel, out of memory, or an operator.
        killed = not self._cause and self._status == -signal.SIGKILL
        innocent = killed or self._innocent
        self._cause = self._cause or _exit_text(self._status)
        if self._frames is not None:
            self._frames.close()
            self._frames = None
        self._let_go_of_child()
        failure = Failure(f"{self._name}: {self._cause}", fatal=True, innocent=innocent)
        for question in self._questions.close():
            question.answer(failure)
        self._on_dead(self._cause)

    def _let_go_of_child(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None


def _exit_text(status: int | None) -> str:
    if status is None:
        return "the worker process died"
    if status >= 0:
        return f"the worker process ended with exit code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = "unknown"
    return f"the worker process was killed by signal {-status} ({name})"
