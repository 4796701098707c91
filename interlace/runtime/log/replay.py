"""Replays a log with a fresh engine, which must give the same commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from interlace.core.messages import Command, Event
from interlace.engine.engine import Engine
from interlace.policy.base import System
from interlace.runtime.log.codec import LogError, LogFile, OpenWork, decode, digest, track
from interlace.runtime.log.write import restore


class ReplayStep(NamedTuple):
    """One replayed event; ``same`` if its commands equal those of the run.

    ``place`` counts from 0. ``engine`` is as it was after the event, until the next step.
    """

    place: int
    now_ms: float
    event: Event
    commands: Sequence[Command]
    same: bool
    engine: Engine


@dataclass(frozen=True, slots=True)
class Replay:
    """A log and the system that its engine was made with."""

    log: LogFile
    system: System

    def steps(self) -> Iterator[ReplayStep]:
        """Play the log from its beginning; may be called again.

        After the first step that is not the ``same``, the engine's state differs from the run's.
        Later steps show what it would have done with the same events. They end at an event that
        makes no sense to it, such as the end of a batch that it never began.

        Raises:
            LogError: an entry cannot be read, or does not fit those before it.
        """
        engine, begun = self.begin()
        so_far = True
        for place, entry in enumerate(self.log.entries()):
            try:
                now_ms, expected, event = decode(entry, begun)
            except Exception as error:  # a damaged entry raises anything
                if not so_far:
                    return
                raise LogError(f"{self.log.path}: event {place}: {error}") from None
            try:
                commands = engine.handle(event, now_ms)
            except Exception:
                if not so_far:
                    return
                raise  # the engine broke here in the run too: this is the way to the bug
            track(begun, event, commands)
            same = digest(commands) == expected
            so_far = so_far and same
            yield ReplayStep(place, now_ms, event, commands, same, engine)

    def begin(self) -> tuple[Engine, OpenWork]:
        """The engine as it was when the log began, and the work it then waited for.

        Raises:
            LogError: this version cannot take it over.
        """
        header = self.log.header
        if not header.checkpoint:
            return Engine(header.fleet, self.system, header.reserve), {}
        try:
            return restore(header.checkpoint, self.system)
        except Exception as error:  # so does the engine of a damaged log
            raise LogError(
                f"{self.log.path}: version {header.version} began it, whose engine this one "
                f"cannot take over: {error}"
            ) from None
