"""The margin that admission keeps before deadlines, steered by how often they are missed."""

from __future__ import annotations

from typing import Final

#: So many successes narrow the margin as much as one miss widens it.
_SUCCESSES_PER_MISS: Final = 1500.0
#: Parts of the SLO. The least is for what the server does not see: the request's way here, and the
#: reply's way back.
_STEP: Final = 0.05
_LEAST: Final = 0.02
_MOST: Final = 0.8


class AdmissionMargin:
    """How long before its deadline a request must be predicted to end to be admitted.

    Predictions err, and a queue filled to the last millisecond turns every error into a missed
    deadline. The outcome of each admitted request steers the margin (a Robbins-Monro recursion on
    the event itself): a miss widens it by one step, a success narrows it by a step over
    ``_SUCCESSES_PER_MISS``. Only the first miss counts against a margin: requests admitted before
    the last widening, such as all those queued behind one stall, do not widen it again.
    """

    __slots__ = ("_least_ms", "_most_ms", "_step_ms", "_widened_ms", "margin_ms")

    def __init__(self, slo_ms: float) -> None:
        self._least_ms = slo_ms * _LEAST
        self.margin_ms = self._least_ms
        self._step_ms = slo_ms * _STEP
        self._most_ms = slo_ms * _MOST
        self._widened_ms = float("-inf")

    def met(self) -> None:
        """An accepted request was answered in time."""
        self.margin_ms = max(self._least_ms, self.margin_ms - self._step_ms / _SUCCESSES_PER_MISS)

    def missed(self, arrived_ms: float, now_ms: float) -> None:
        """A request accepted at ``arrived_ms`` was late, or had to be dropped."""
        if arrived_ms >= self._widened_ms:
            self.margin_ms = min(self._most_ms, self.margin_ms + self._step_ms)
            self._widened_ms = now_ms
