"""Requests that a GPU's process has not answered, and which of them caused its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

from interlace.core.messages import Failure
from interlace.device.cuda.worker.wire import GpuAnswer, GpuRequest
from interlace.device.process.wire import RunBatch

OnAnswer = Callable[[GpuAnswer | Failure], None]


class FaultLog:
    """Open requests by line, and the line that is blamed when the process ends.

    The rule: a line is to blame if it was the only one under way when the process ended; if there
    were several, none is, and each is tried again alone. Fatal failures are held back until
    ``verdicts``: their receivers may send new work at once, which must not meet a half-dead device.
    """

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()
        self._culprits: frozenset[str] | None = None
        self._held_back: list[tuple[str, Callable[[], None]]] = []
        self._judged = False

    def track(self, request: GpuRequest, answer: OnAnswer) -> OnAnswer:
        """Count a request as open; give its answer to what is returned instead of ``answer``."""
        self._open[request.line] += 1

        def answered(result: GpuAnswer | Failure) -> None:
            if isinstance(result, Failure) and result.fatal:
                if not self._judged:
                    verdict = self._verdict(result, request)
                    self._held_back.append((request.partition, partial(answer, verdict)))
                    return
                result = replace(result, innocent=True)  # sent after the cause
            self._open[request.line] -= 1
            answer(result)

        return answered

    def blame(self, under_way: Collection[str]) -> None:
        """These lines were under way when the process ended. Only the first call counts."""
        if self._culprits is None:
            self._culprits = frozenset(under_way) if len(under_way) == 1 else frozenset()

    def verdicts(self) -> dict[str, list[Callable[[], None]]]:
        """Answers held back, as calls by partition, the blamed one first.

        Failures that come after this call are answered at once.
        """
        self._judged = True
        found: dict[str, list[Callable[[], None]]] = {}
        guilty = self._culprits or frozenset()
        self._held_back.sort(key=lambda one: not {one[0], f"{one[0]}+"} & guilty)
        for partition, answer in self._held_back:
            found.setdefault(partition, []).append(answer)
        self._held_back.clear()
        return found

    def _verdict(self, failure: Failure, request: GpuRequest) -> Failure:
        # If the process did not say what was under way, all that is open was.
        self.blame([line for line, count in self._open.items() if count > 0])
        # Killed from outside during a batch: once that is chance, twice it is not.
        spared = failure.innocent and isinstance(request.what, RunBatch) and not request.alone
        return replace(failure, innocent=spared or request.line not in (self._culprits or ()))
