"""The main process's side of one worker: questions in order, answers in order, its death."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from interlace.core.messages import Failure
from interlace.device.process.spawner import SpawnCallbacks
from interlace.shm.frame_socket import AsyncFrameSocket, Decode, frame_pair

To = TypeVar("To")
From = TypeVar("From")
A = TypeVar("A")

_NEVER_S = float("inf")
#: Grace after a deadline: answers that arrived while the loop was busy are read first.
_READ_S = 0.05


@dataclass(frozen=True, slots=True)
class WorkTimeouts:
    """How long work may take before its worker is killed, in seconds; a ``Run`` says so itself."""

    carve_s: float = 60.0
    load_s: float = 300.0
    stage_s: float = 30.0


class PendingRequest(NamedTuple, Generic[A]):
    """Who hears the answer (or why there is none), how long it may take, and what was asked."""

    answer: Callable[[A | Failure], None]
    limit_s: float
    what: str


class _Line(Generic[A]):
    """Questions answered in the order asked; ``due_s`` is when the first must be.

    ``passed``: that was over once, and what had come by then is being read.
    """

    __slots__ = ("due_s", "passed", "questions")

    def __init__(self) -> None:
        self.questions: deque[PendingRequest[A]] = deque()
        self.due_s = _NEVER_S
        self.passed = False


class PendingRequests(Generic[A]):
    """Open questions by line. Answers of one line come in order, lines do not wait for each other.

    A limit counts from when the question became the first of its line, which is when it could
    begin. ``on_late`` hears of the first that took too long; not if its answer came in time, and a
    loop that stood still has not read it. Without open questions there are no timers.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_late: Callable[[str], None]) -> None:
        self._loop = loop
        self._on_late = on_late
        self._lines: dict[str, _Line[A]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = _NEVER_S

    def add(self, line: str, question: PendingRequest[A]) -> None:
        """A question was asked."""
        entry = self._lines.get(line)
        if entry is None:
            entry = self._lines[line] = _Line()
        entry.questions.append(question)
        if len(entry.questions) == 1:
            self._watch(entry, question.limit_s)

    def answered(self, line: str) -> PendingRequest[A]:
        """The question that an answer of this line is to."""
        entry = self._lines[line]
        question = entry.questions.popleft()
        if entry.questions:
            self._watch(entry, entry.questions[0].limit_s)
        else:
            entry.due_s = _NEVER_S
        return question

    def extend(self, line: str, by_s: float) -> None:
        """The first question of a line may take so much longer; a line without one passes."""
        entry = self._lines.get(line)
        if entry is not None and entry.questions:
            entry.due_s += by_s

    def begin_anew(self, line: str) -> None:
        """The first question of a line may take as long again; a line without one passes."""
        entry = self._lines.get(line)
        if entry is not None and entry.questions:
            self._watch(entry, entry.questions[0].limit_s)

    def set_apart(self, line: str, apart: str) -> None:
        """Move the first question of a line to a line of its own, which is not watched."""
        question = self.answered(line)
        entry = self._lines[apart] = _Line()
        entry.questions.append(question)

    def watch_apart(self, apart: str, watched: bool) -> None:
        """Watch a question that was set apart, or stop; everything else may go before it."""
        entry = self._lines.get(apart)
        if entry is None or not entry.questions:
            return
        firsts = [line.questions[0] for line in self._lines.values() if line.questions]
        entry.due_s = _NEVER_S
        if watched:
            self._watch(entry, sum(question.limit_s for question in firsts))

    def close(self) -> list[PendingRequest[A]]:
        """What is still open, line by line; nothing is watched any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines, self._lines = self._lines, {}
        return [question for line in lines.values() for question in line.questions]

    def forget(self, line: str) -> None:
        """Drop a line in which nothing is open."""
        entry = self._lines.get(line)
        if entry is not None and not entry.questions:
            del self._lines[line]

    def _watch(self, entry: _Line[A], limit_s: float) -> None:
        entry.due_s, entry.passed = self._loop.time() + limit_s, False
        if entry.due_s < self._timer_s:
            self._set_timer(entry.due_s)

    def _set_timer(self, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = due_s
        self._timer = self._loop.call_at(due_s, self._look)

    def _look(self) -> None:
        self._timer, self._timer_s = None, _NEVER_S
        first = min(self._lines.values(), key=lambda line: line.due_s, default=None)
        if first is None or first.due_s == _NEVER_S:
            return
        if self._loop.time() < first.due_s:
            self._set_timer(first.due_s)
            return
        if not first.passed:
            first.due_s, first.passed = self._loop.time() + _READ_S, True
            self._set_timer(first.due_s)
            return
        question = first.questions[0]
        self._on_late(f"'{question.what}' took longer than {question.limit_s:g} s")


_STATUS_S: Final = 0.25  #: how long to wait for the reason of a death


#: Starts a process of a name that talks over a descriptor, which must stay open until it is there.
Spawn = Callable[[str, int, SpawnCallbacks], None]


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
    one line. ``questions`` are those that are open.
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
        self.questions: PendingRequests[A] = PendingRequests(
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

    def start(self, spawn: Spawn, setup: To, question: PendingRequest[A]) -> None:
        """Start the worker and send it its setup; the answer is the first of line "".

        Raises:
            OSError: no file descriptor is left.
        """
        ours, self._child = frame_pair()
        decode = self._protocol.decode
        self._frames = AsyncFrameSocket(self._loop, ours, decode, self._heard, self._closed)
        self.ask(setup, question)
        spawn(self._name, self._child.fileno(), SpawnCallbacks(self._forked, self._exited))

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
        self.questions.add(line, question)
        return True

    def tell(self, frame: To, descriptor: int | None = None) -> None:
        """Send a frame that has no answer, and a descriptor with it, as ``AsyncFrameSocket``."""
        if self._frames is not None:
            with contextlib.suppress(BufferError):  # a hung worker is about to be killed
                self._frames.send(frame, descriptor)

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
        question = self.questions.answered(answer[0])
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
        for question in self.questions.close():
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
    hint = ", by the kernel for lack of memory or by hand" if status == -signal.SIGKILL else ""
    return f"the worker process was killed by signal {-status} ({name}){hint}"
