"""Batches that run side by side, each at a speed that its company decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from interlace.device.virtual.contention import Busy, Contention
from interlace.perf.interference import Interference, Runner

#: Work below this many ms is done: what rounding leaves.
_NOTHING_MS = 1e-9


class Timer(Protocol):
    """The part of a clock that a simulated device needs."""

    def now_ms(self) -> float: ...
    def call_at(self, at_ms: float, call: Callable[[], None]) -> None: ...


class _Running:
    __slots__ = ("busy", "ended", "left_ms", "speed", "turn")

    def __init__(self, busy: Busy, work_ms: float, ended: Callable[[], None]) -> None:
        self.busy = busy
        self.left_ms = work_ms
        self.ended = ended
        self.speed = 1.0
        self.turn = 0


class Progress:
    """Executions by partition. When one begins or ends, what is left of the others is retimed.

    Speeds are 1 alone; 1 over the interference factor beside others; times what the contention rule
    says where the shares exceed 100. While the device is stalled nothing moves.
    """

    def __init__(
        self, timer: Timer, interference: Interference | None, contention: Contention
    ) -> None:
        self._timer = timer
        self._interference = interference
        self._contention = contention
        self._running: dict[str, _Running] = {}
        self._since_ms = 0.0
        self._stalled_until_ms = float("-inf")
        self._crowded = False

    def begin(self, partition: str, busy: Busy, work_ms: float, ended: Callable[[], None]) -> None:
        """Run work that takes ``work_ms`` alone; ``ended`` is called when it is done."""
        self._advance()
        one = self._running[partition] = _Running(busy, work_ms, ended)
        if not self._retime():
            self._schedule(partition, one)

    def drop(self, partition: str) -> None:
        """Forget what runs there: its process died."""
        self._advance()
        if self._running.pop(partition, None) is not None:
            self._retime()

    def clear(self) -> None:
        self._running.clear()

    def stall(self, for_ms: float) -> None:
        """Nothing moves for that long."""
        self._advance()
        now_ms = self._timer.now_ms()
        self._stalled_until_ms = max(self._stalled_until_ms, now_ms + for_ms)
        self._timer.call_at(self._stalled_until_ms, self._resume)
        for name, one in self._running.items():
            one.speed = 0.0
            self._schedule(name, one)

    def _resume(self) -> None:
        if self._timer.now_ms() < self._stalled_until_ms:
            return
        self._advance()
        for one in self._running.values():
            one.speed = 1.0
        if not self._retime():
            for name, one in self._running.items():
                self._schedule(name, one)

    def _advance(self) -> None:
        """Enter the work done since the speeds were set."""
        now_ms = self._timer.now_ms()
        elapsed_ms = now_ms - self._since_ms
        self._since_ms = now_ms
        if elapsed_ms > 0:
            for one in self._running.values():
                one.left_ms -= elapsed_ms * one.speed

    def _retime(self) -> bool:
        """Set speeds anew and reschedule; False if nobody's changed, which is the usual case."""
        company = list(self._running.values())
        if self._timer.now_ms() < self._stalled_until_ms:
            speeds: Sequence[float] = [0.0] * len(company)
        else:
            over = sum(one.busy.share_pct for one in company) > 100
            if not over and self._interference is None and not self._crowded:
                return False
            self._crowded = over or self._interference is not None
            speeds = self._speeds(company, over)
        for (name, one), speed in zip(self._running.items(), speeds, strict=True):
            one.speed = speed
            self._schedule(name, one)
        return True

    def _speeds(self, company: Sequence[_Running], over: bool) -> Sequence[float]:
        speeds = self._contention([one.busy for one in company]) if over else [1.0] * len(company)
        if self._interference is None:
            return speeds
        runners = [Runner(one.busy.model, one.busy.rows, one.busy.share_pct) for one in company]
        return [
            speed / self._interference(one, runners[:index] + runners[index + 1 :])
            for index, (one, speed) in enumerate(zip(runners, speeds, strict=True))
        ]

    def _schedule(self, partition: str, one: _Running) -> None:
        one.turn += 1
        if one.speed <= 0.0:
            return
        turn = one.turn
        at_ms = self._timer.now_ms() + max(0.0, one.left_ms) / one.speed
        self._timer.call_at(at_ms, lambda: self._end(partition, one, turn))

    def _end(self, partition: str, one: _Running, turn: int) -> None:
        if one.turn != turn or self._running.get(partition) is not one:
            return  # retimed or dropped meanwhile
        self._advance()
        assert one.left_ms <= max(_NOTHING_MS, 1e-9 * self._timer.now_ms()), one.left_ms
        del self._running[partition]
        self._retime()
        one.ended()
