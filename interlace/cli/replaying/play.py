"""A log and the system that decided it, for commands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from interlace.cli.options import system_named
from interlace.core.user_errors import InputError
from interlace.policy.base import System
from interlace.runtime.log import LogError, Replay, ReplayStep, open_log


def opened(path: Path) -> Replay:
    """The log in ``path``, ready to be replayed.

    Raises:
        InputError: the file is no event log, or one of a system that is not known here.
        OSError: it cannot be read.
    """
    try:
        log = open_log(path)
    except LogError as error:
        raise InputError(str(error)) from None
    return Replay(log, deciding(log.header.system))


def steps(replay: Replay) -> Iterator[ReplayStep]:
    """Every event, decided again. The engine of a step is live: it changes with the next.

    Raises:
        InputError: the log is damaged.
    """
    try:
        yield from replay.steps()
    except LogError as error:
        raise InputError(str(error)) from None


def deciding(name: str) -> System:
    """The system that decided, by the name in the log: A, or A+B for A with B's dispatcher.

    Raises:
        InputError: there is none of that name here.
    """
    first, _, other = name.partition("+")
    try:
        found = system_named(first)
        if other:
            return replace(found, name=name, dispatcher=system_named(other).dispatcher)
        return found
    except InputError as error:
        raise InputError(f"the system that wrote the log is not here: {error}") from None
