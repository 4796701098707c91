"""The margin that admission keeps before deadlines, steered by how often they are missed."""

from __future__ import annotations

from typing import Final

#: Parts of the SLO. The least is for what the server does not see: the request's way here, and the
#: reply's way back.
_MISS_STEP: Final = 0.05
_DROP_STEP: Final = 0.002
_LEAST: Final = 0.02
_MOST: Final = 0.8
#: So many successes narrow the margin as much as one miss, or one drop, widens it.
_SUCCESSES_PER_MISS: Final = 1500.0
_SUCCESSES_PER_DROP: Final = 20.0


class AdmissionMargin:
    """How long before its deadline a request must be predicted to end to be admitted.

    Predictions err, and a queue filled to the last millisecond turns every error into a missed
    deadline. The outcome of each admitted request steers the margin (a Robbins-Monro recursion on
    the event itself): a miss widens it by one step, a success narrows it by a step over
    ``_SUCCESSES_PER_MISS``. Only the first miss counts against a margin: requests admitted before
    the last widening, such as all those queued behind one stall, do not widen it again.

    A drop is no error: dispatchers give requests up so that more are in time, and a queue from
    which they can choose fills larger batches. So drops have a part of the margin of their own,
    which grows only where they are more than one in ``_SUCCESSES_PER_DROP``.
    """

    __slots__ = ("_drops", "_misses", "_slo_ms", "_widened_ms", "margin_ms")

    def __init__(self, slo_ms: float) -> None:
        self._slo_ms = slo_ms
        self._misses = self._drops = 0.0  # parts of the SLO
        self._widened_ms = float("-inf")
        self.margin_ms = slo_ms * _LEAST

    def met(self) -> None:
        """An accepted request was answered in time."""
        if self._misses or self._drops:
            self._misses = max(0.0, self._misses - _MISS_STEP / _SUCCESSES_PER_MISS)
            self._drops = max(0.0, self._drops - _DROP_STEP / _SUCCESSES_PER_DROP)
            self._set()

    def missed(self, arrived_ms: float, now_ms: float) -> None:
        """A request accepted at ``arrived_ms`` was answered late."""
        if arrived_ms >= self._widened_ms:
            self._misses = min(_MOST - _LEAST, self._misses + _MISS_STEP)
            self._widened_ms = now_ms
            self._set()

    def dropped(self) -> None:
        """An accepted request was dropped: it, or those behind it, had no time."""
        self._drops = min(_MOST - _LEAST, self._drops + _DROP_STEP)
        self._set()

    def _set(self) -> None:
        self.margin_ms = self._slo_ms * min(_MOST, _LEAST + self._misses + self._drops)
