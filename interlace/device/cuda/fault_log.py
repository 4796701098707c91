"""What one process was asked and has not answered, and what its end means for each of it."""

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
    """Open work by line, and whose fault it was when the process ended.

    Failures that come with the end are kept until ``verdicts``: whoever hears of one may send new
    work at once, and must find nothing half dead.
    """

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()
        self._culprits: frozenset[str] | None = None
        self._fallen: list[tuple[str, Callable[[], None]]] = []
        self._told = False

    def entered(self, asked: GpuRequest, answer: OnAnswer) -> OnAnswer:
        """Enter a piece of work; what is returned hears its answer."""
        self._open[asked.line] += 1

        def heard(said: GpuAnswer | Failure) -> None:
            if isinstance(said, Failure) and said.fatal:
                if not self._told:
                    judged = self._judged(said, asked)
                    self._fallen.append((asked.partition, partial(answer, judged)))
                    return
                said = replace(said, innocent=True)  # it came too late to be the cause
            self._open[asked.line] -= 1
            answer(said)

        return heard

    def blame(self, lines: Collection[str]) -> None:
        """These were under way when it ended: one alone is the cause, of several nobody knows."""
        if self._culprits is None:
            self._culprits = frozenset(lines) if len(lines) == 1 else frozenset()

    def verdicts(self) -> dict[str, list[Callable[[], None]]]:
        """What is to be told, by partition, the cause first; later failures are told at once."""
        self._told = True
        found: dict[str, list[Callable[[], None]]] = {}
        guilty = self._culprits or frozenset()
        self._fallen.sort(key=lambda one: not {one[0], f"{one[0]}+"} & guilty)
        for partition, tell in self._fallen:
            found.setdefault(partition, []).append(tell)
        self._fallen.clear()
        return found

    def _judged(self, failure: Failure, asked: GpuRequest) -> Failure:
        # Without a word of the process: whoever was alone in it.
        self.blame([line for line, count in self._open.items() if count > 0])
        # Killed from outside while it ran a batch: once that is chance, twice it is not.
        spared = failure.innocent and isinstance(asked.what, RunBatch) and not asked.alone
        return replace(failure, innocent=spared or asked.line not in (self._culprits or ()))
