"""What became of a request of an app."""

from __future__ import annotations

from typing import NamedTuple

from interlace.core.request import Outcome


class AppServed(NamedTuple):
    """One request of an app, from its arrival to its last answer. Times in ms.

    Its outcome is OK if all stages were answered and the last one in time, LATE if only that one
    was not, EXPIRED if stages were not begun for lack of time, else what became of the first
    request that failed. ``requests`` are those of all its stages.
    """

    app: str
    arrived_ms: float
    deadline_ms: float
    answered_ms: float
    outcome: Outcome
    requests: int
