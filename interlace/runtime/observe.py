"""Observers see every event and its commands from outside; one that raises is removed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from interlace.core.messages import Command, Event

Observer = Callable[[float, Event, Sequence[Command]], None]
