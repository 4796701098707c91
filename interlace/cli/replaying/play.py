"""A log through a fresh engine: the same commands, or the first that differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from interlace.cli.failure import InputError
from interlace.core.messages import Command, Event
from interlace.engine.engine import Engine
from interlace.engine.state import State
from interlace.policy.base import System
from interlace.policy.catalog import system as row
from interlace.runtime.eventlog import LogError, read_header, read_log
from interlace.runtime.eventlog.plain import digest


@dataclass(frozen=True, slots=True)
class Step:
    """One event of a replay: the engine's state after it, what it asked for, and whether that is
    what it asked for when the log was written."""

    now_ms: float
    event: Event
    commands: Sequence[Command]
    same: bool
    state: State


def steps(path: Path) -> Iterator[Step]:
    """Replay a log. The state of a step is live: it changes with the next.

    Raises:
        InputError: the file is no event log.
    """
    try:
        header = read_header(path)
        engine = Engine(header.fleet, deciding(header.system))
        for entry in read_log(path):
            commands = engine.handle(entry.event, entry.now_ms)
            same = digest(commands) == entry.digest
            yield Step(entry.now_ms, entry.event, commands, same, engine.state)
    except LogError as error:
        raise InputError(str(error)) from None


def deciding(name: str) -> System:
    """The row that decided, by the name in the log: A, or A+B for A with B's dispatcher."""
    first, _, other = name.partition("+")
    try:
        found = row(first)
        return replace(found, name=name, dispatcher=row(other).dispatcher) if other else found
    except KeyError as error:
        raise InputError(f"the log was written by another version: {error.args[0]}") from None
