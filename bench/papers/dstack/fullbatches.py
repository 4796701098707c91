"""Fixed batches taken at their word: 16 rows every time, however long they take to come together.

Section 7 says that the largest batch of 16 is picked "every time", and names no timeout. The
catalog's row gives up waiting after half the SLO, as nobody would run a server without. And our
engine drops who is hopeless, which a server that only gathers batches does not do, and which would
keep a batch from ever being full. So here nobody is dropped, and lateness is counted afterwards.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from bench.papers.dstack.trial import Case, planned, run
from interlace.core.request import Outcome
from interlace.policy.dispatchers.dynamic_batching import DynamicBatching

_HOUR_MS: Final = 3.6e6


class Gathered(NamedTuple):
    """Requests/s answered while requests came, and the part that was late or never in a batch."""

    answered_rps: float
    missed_of_all: float


def every_time_16(case: Case, seconds: float) -> Gathered:
    """Every model on all of the GPU, each of its batches full."""
    patient = case._replace(slos_ms=dict.fromkeys(case.slos_ms, _HOUR_MS))
    waits = DynamicBatching(wait_part=float("inf"))
    record = run("fixed", patient, seconds, plan=planned("fixed", case), dispatcher=waits).record
    answered = [one for one in record.served if one.outcome is Outcome.OK]
    while_asked = sum(one.answered_ms <= record.until_ms for one in answered)
    in_time = sum(one.answered_ms - one.arrived_ms <= case.slos_ms[one.model] for one in answered)
    span_s = (record.until_ms - record.from_ms) / 1000.0
    return Gathered(while_asked / span_s, 1.0 - in_time / max(1, len(record.served)))
