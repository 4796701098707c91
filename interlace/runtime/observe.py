"""Observers see every event and its commands from outside; one that raises is removed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from interlace.core.messages import Command, Event

Observer = Callable[[float, Event, Sequence[Command]], None]


class EventLog:
    """The last ``limit`` events with their times: replayed, they give identical commands."""

    def __init__(self, limit: int = 100_000) -> None:
        self._entries: deque[tuple[float, Event]] = deque(maxlen=limit)

    def __call__(self, now_ms: float, event: Event, commands: Sequence[Command]) -> None:
        self._entries.append((now_ms, event))

    @property
    def entries(self) -> Sequence[tuple[float, Event]]:
        return tuple(self._entries)
