"""Work that shares nothing, done in parallel by copies of this process."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple, TypeVar

A = TypeVar("A")
B = TypeVar("B")


class _Child(NamedTuple):
    """A process, where its answers are read, and the numbers of what it was given."""

    pid: int
    answers: int
    numbers: Sequence[int]


def usable_cores() -> int:
    """Cores that this process may use; one where the system does not tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def in_parallel(
    function: Callable[[A], B], asked: Sequence[A], costs: Sequence[float], cores: int
) -> list[B]:
    """``function`` of each, in order, as if one after the other; ``costs`` are in any unit.

    Processes are copies of this one, so that only answers need be pickled. One that has threads is
    not copied, since they may hold locks: then all is done here, as is what a process leaves
    without an answer.
    """
    mine, *others = _dealt(costs, cores if threading.active_count() == 1 else 1)
    with ExitStack() as ends:
        children = []
        for numbers in others:
            children.append(_begun(function, asked, numbers))
            ends.callback(_end, children[-1])
        found = {number: function(asked[number]) for number in mine}
        for child in children:
            answers = _answers(child) or [function(asked[number]) for number in child.numbers]
            found.update(zip(child.numbers, answers, strict=True))
    return [found[number] for number in range(len(asked))]


def _dealt(costs: Sequence[float], cores: int) -> list[list[int]]:
    """Numbers of what each process does: the costliest first, to whoever has least."""
    dealt: list[list[int]] = [[] for _ in range(max(1, min(cores, len(costs))))]
    given = [0.0] * len(dealt)
    for number in sorted(range(len(costs)), key=lambda number: -costs[number]):
        least = given.index(min(given))
        dealt[least].append(number)
        given[least] += costs[number]
    return dealt


def _begun(function: Callable[[A], B], asked: Sequence[A], numbers: Sequence[int]) -> _Child:
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Threads that are counted here are those of libraries, which do nothing meanwhile.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        with suppress(BaseException):  # what has no answer is done again, and told, by the parent
            answers = pickle.dumps([function(asked[number]) for number in numbers])
            with os.fdopen(writing, "wb") as out:
                out.write(answers)
        os._exit(0)
    os.close(writing)
    return _Child(pid, reading, numbers)


def _answers(child: _Child) -> list[Any]:
    """What a process found; nothing if it ended before all was told."""
    with os.fdopen(child.answers, "rb", closefd=False) as told:
        data = told.read()
    with suppress(EOFError, pickle.UnpicklingError):
        return list(pickle.loads(data))
    return []


def _end(child: _Child) -> None:
    os.close(child.answers)
    os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)
