"""When the responses of a stream came, against what its model promises."""

from __future__ import annotations

from collections.abc import Callable

from interlace.core.model import ServiceTerms
from interlace.core.request import PartialResponse
from interlace.server.model_table import StreamStatistics


class ResponseTimes:
    """Enters the responses to one request in its model's statistics, and passes them on."""

    def __init__(
        self,
        statistics: StreamStatistics,
        terms: ServiceTerms,
        arrived_ms: float,
        now_ms: Callable[[], float],
        respond: Callable[[PartialResponse], None],
    ) -> None:
        self._statistics = statistics
        self._terms = terms
        self._arrived_ms = arrived_ms
        self._now_ms = now_ms
        self._respond = respond
        self._first_ms = self._last_ms = 0.0

    def __call__(self, response: PartialResponse) -> None:
        now_ms, statistics, terms = self._now_ms(), self._statistics, self._terms
        if response.outputs or response.error is not None:
            if not self._first_ms:
                self._first_ms = now_ms
                statistics.first.add(now_ms - self._arrived_ms, terms.first_response_ms)
            else:
                statistics.gap.add(now_ms - self._last_ms, terms.gap_ms)
            self._last_ms = now_ms
        if response.final and self._first_ms:
            statistics.ended(now_ms - self._first_ms)
        self._respond(response)
