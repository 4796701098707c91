"""A log and the system that decided it, for commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from interlace.core.user_errors import InputError
from interlace.planning.systems import system_of
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
    try:
        return Replay(log, system_of(log.header.system))
    except InputError as error:
        raise InputError(f"the system that wrote the log is not here: {error}") from None


def steps(replay: Replay) -> Iterator[ReplayStep]:
    """Every event, decided again. The engine of a step is live: it changes with the next.

    Raises:
        InputError: the log is damaged.
    """
    try:
        yield from replay.steps()
    except LogError as error:
        raise InputError(str(error)) from None
