"""A log played again by a fresh engine, which must decide as the one before it did."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from interlace.core.messages import Command, Event
from interlace.engine.engine import Engine
from interlace.policy.base import System
from interlace.runtime.log.checkpoint import restore
from interlace.runtime.log.form import Open, decode, digest, follow
from interlace.runtime.log.read import LogError, LogFile

#: Looks at the engine before an event is given to it.
Before = Callable[[float, Event, Engine], None]


class Step(NamedTuple):
    """One event, played again; ``same`` if its commands are those of the run.

    ``place`` counts from 0.
    """

    place: int
    now_ms: float
    event: Event
    commands: Sequence[Command]
    same: bool


@dataclass(frozen=True, slots=True)
class Replay:
    """A log and the system that its engine was made with."""

    log: LogFile
    system: System

    def steps(self, before: Before = lambda now_ms, event, engine: None) -> Iterator[Step]:
        """Play the log from its beginning; may be called again.

        After the first step that is not the ``same``, the engine is another one than that of the
        run, and what follows shows what it would have done with the same events.

        Raises:
            LogError: an entry cannot be read, or does not fit those before it.
        """
        engine, begun = self._fresh()
        for index, entry in enumerate(self.log.entries()):
            try:
                now_ms, expected, event = decode(entry, begun)
            except (ValueError, msgspec.MsgspecError) as error:
                raise LogError(f"{self.log.path}: event {index}: {error}") from None
            before(now_ms, event, engine)
            commands = engine.handle(event, now_ms)
            follow(begun, event, commands)
            yield Step(index, now_ms, event, commands, digest(commands) == expected)

    def _fresh(self) -> tuple[Engine, Open]:
        header = self.log.header
        if not header.checkpoint:
            return Engine(header.fleet, self.system, header.reserve), {}
        try:
            return restore(header.checkpoint, self.system)
        except (pickle.UnpicklingError, AttributeError, TypeError, ImportError) as error:
            raise LogError(
                f"{self.log.path}: version {header.version} began it, whose engine this one "
                f"cannot take over: {error}"
            ) from None
