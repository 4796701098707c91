"""The main process's side of one worker: questions in order, answers in order, its death."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from interlace.core.messages import Failure
from interlace.device.spawner import Birth, Spawner
from interlace.device.wire import (
    Answer,
    FreeBatches,
    FromWorker,
    Ready,
    Setup,
    Starved,
    ToWorker,
    decode_from_worker,
)
from interlace.shm.frames import LoopFrames, frame_pair

OnAnswer = Callable[[Answer | Failure], None]

_STATUS_S: Final = 0.25  #: how long to wait for the reason of a death


class Question(NamedTuple):
    """What the worker was asked, who hears the answer, and how long it may take."""

    answer: OnAnswer
    limit_s: float
    what: str


class WorkerLink:
    """One worker process. ``on_dead`` is called once, after every open question got a failure.

    A worker that does not answer within a question's limit, counted from when it could begin, is
    killed. Without open questions there are no timers.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        setup: Setup,
        on_starved: Callable[[], None],
        on_dead: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._setup = setup
        self._on_starved = on_starved
        self._on_dead = on_dead
        self._questions: deque[Question] = deque()
        self._frames: LoopFrames[ToWorker, FromWorker] | None = None
        self._child: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = self._timer_s = float("inf")
        self._status: int | None = None
        self._ended = False
        self._cause = ""
        self.pid: int | None = None
        self.dead = False

    def start(self, spawner: Spawner, answer: OnAnswer, limit_s: float) -> None:
        """Have the worker forked and set up; ``answer`` hears ``Ready`` or what went wrong.

        Raises:
            OSError: no file descriptor is left.
        """
        ours, self._child = frame_pair()
        self._frames = LoopFrames(self._loop, ours, decode_from_worker, self._heard, self._closed)
        self.ask(self._setup, Question(answer, limit_s, "start"))
        spawner.spawn(self._setup.name, self._child.fileno(), Birth(self._forked, self._exited))

    def ask(self, frame: ToWorker, question: Question) -> bool:
        """Send a frame that has an answer; ``False`` if it was not sent, and will be answered."""
        if self.dead or self._frames is None:
            failure = Failure(f"{self._setup.name}: {self._cause}", fatal=True)
            self._loop.call_soon(question.answer, failure)
            return False
        try:
            self._frames.send(frame)
        except (ValueError, BufferError) as error:
            self._loop.call_soon(question.answer, Failure(f"{self._setup.name}: {error}"))
            return False
        self._questions.append(question)
        if len(self._questions) == 1:
            self._watch(question.limit_s)
        return True

    def free(self, batches: tuple[int, ...]) -> None:
        """Send a frame that has no answer."""
        if self._frames is not None:
            with contextlib.suppress(BufferError):  # a hung worker is about to be killed
                self._frames.send(FreeBatches(batches))

    def finish(self) -> None:
        """Let the worker end after what it was asked."""
        if self._frames is not None:
            self._frames.finish()

    def kill(self, cause: str) -> None:
        """Kill the worker; its death is reported with this cause."""
        self._cause = self._cause or cause
        if self.pid is not None and self._status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        if not self._ended:
            self._end_soon()

    def close(self, cause: str) -> None:
        """Kill the worker and report its death now."""
        if self.dead:
            return
        self.kill(cause)
        self._die()

    def _heard(self, frame: FromWorker) -> None:
        if isinstance(frame, Starved):
            self._on_starved()
            return
        question = self._questions.popleft()
        if self._questions:
            self._watch(self._questions[0].limit_s)
        else:
            self._due_s = float("inf")
        if isinstance(frame, Ready):
            self._let_go_of_child()
        question.answer(frame)

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
        self._cause = self._cause or _words(self._status)
        if self._frames is not None:
            self._frames.close()
            self._frames = None
        self._let_go_of_child()
        if self._timer is not None:
            self._timer.cancel()
        failure = Failure(f"{self._setup.name}: {self._cause}", fatal=True)
        while self._questions:
            self._questions.popleft().answer(failure)
        self._on_dead(self._cause)

    def _let_go_of_child(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    # ------------------------------------------------------------------------------------ limits

    def _watch(self, limit_s: float) -> None:
        self._due_s = self._loop.time() + limit_s
        if self._due_s < self._timer_s:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = self._due_s
        self._timer = self._loop.call_at(self._due_s, self._look)

    def _look(self) -> None:
        self._timer, self._timer_s = None, float("inf")
        if not self._questions:
            return
        if self._loop.time() < self._due_s:
            self._set_timer()
            return
        question = self._questions[0]
        self.kill(f"killed: '{question.what}' took longer than {question.limit_s:g} s")


def _words(status: int | None) -> str:
    if status is None:
        return "the worker process died"
    if status >= 0:
        return f"the worker process ended with exit code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = "unknown"
    return f"the worker process was killed by signal {-status} ({name})"
