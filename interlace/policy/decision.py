"""What policies answer, and values that they are given."""

from __future__ import annotations

from math import inf

from msgspec import Struct


class Tally(Struct, frozen=True, gc=False):
    """What a model has had on one accelerator: last start, and accelerator time so far, in ms."""

    last_start_ms: float = -inf
    busy_ms: float = 0.0


class Launch(Struct, frozen=True, gc=False):
    """Start a batch of up to ``rows`` rows now; ``padded_rows`` are executed, if they are more."""

    partition: str
    model: str
    rows: int
    padded_rows: int = 0


class Drop(Struct, frozen=True, gc=False):
    """Give up a model's ``requests`` most urgent requests, so that those behind them make it."""

    model: str
    requests: int


class Dispatch(Struct, frozen=True, gc=False):
    """What starts now, what is given up before, and when to ask again if nothing else happens."""

    launches: tuple[Launch, ...] = ()
    wake_ms: float | None = None
    drops: tuple[Drop, ...] = ()


class Refusal(Struct, frozen=True, gc=False):
    """Why a request may not come in: predicted lateness, and when trying again may succeed.

    ``retry_after_ms`` is ``None`` where waiting cannot help.
    ``full`` marks a queue at its bound, whatever the deadline. ``cold_ms`` is how long the model's
    weights are waited for. ``model`` is the one that would be late, if not the request's.
    """

    late_ms: float
    retry_after_ms: float | None
    full: bool = False
    cold_ms: float = 0.0
    model: str = ""
