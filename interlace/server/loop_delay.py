"""How long everything that is served waits for the event loop, and for what."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from typing import Final

from interlace.server.model_table import Duration

_LOG: Final = logging.getLogger(__name__)
#: Between looks; each measures how much later than this it comes.
_PERIOD_S: Final = 0.02
#: Delays from here on are logged, at most one a minute: the longest.
_LONG_MS: Final = 20.0
_QUIET_S: Final = 60.0
_US_PER_MS: Final = 1000.0


class LoopDelay:
    """A timer on the loop of a server, and how late it runs: in ``delays``, and in warnings.

    A long delay is put down to a collection of garbage, to other processes that had the processor,
    or else to work on the loop itself.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, run_delay_ms: Callable[[], float] = lambda: 0.0
    ) -> None:
        """``run_delay_ms`` says how long the thread waited for a processor in all."""
        self.delays = Duration()
        self._loop, self._run_delay_ms = loop, run_delay_ms
        self._collected_ms = self._collection_s = self._waited_ms = 0.0
        self._longest_ms, self._why, self._long = 0.0, "", 0
        self._told_s = float("-inf")
        self._begun_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look from now on: before a server is ready, it may be busy."""
        self._begun_s = self._loop.time()
        self._timer = self._loop.call_later(_PERIOD_S, self._look)
        gc.callbacks.append(self._collects)

    def close(self) -> None:
        """Stop looking."""
        if self._timer is not None:
            self._timer.cancel()
        if self._collects in gc.callbacks:
            gc.callbacks.remove(self._collects)

    def _look(self) -> None:
        now_s = self._loop.time()
        late_ms = max(0.0, now_s - self._begun_s - _PERIOD_S) * 1000.0
        run_delay_ms = self._run_delay_ms()
        waited_ms, collected_ms = run_delay_ms - self._waited_ms, self._collected_ms
        self._waited_ms = run_delay_ms
        self._collected_ms = 0.0
        self.delays.add(late_ms * _US_PER_MS)
        if late_ms > _LONG_MS:
            self._long += 1
            if late_ms > self._longest_ms:
                self._longest_ms, self._why = late_ms, _reason(late_ms, waited_ms, collected_ms)
        if self._long and now_s >= self._told_s + _QUIET_S:
            self._tell(now_s)
        self._begun_s = now_s
        self._timer = self._loop.call_later(_PERIOD_S, self._look)

    def _tell(self, now_s: float) -> None:
        times = "" if self._long == 1 else f", the longest of {self._long} delays"
        _LOG.warning(
            "nothing was read or answered for %.0f ms%s: %s", self._longest_ms, times, self._why
        )
        self._longest_ms, self._long, self._told_s = 0.0, 0, now_s

    def _collects(self, phase: str, info: dict[str, int]) -> None:
        now_s = self._loop.time()
        if phase == "start":
            self._collection_s = now_s
        else:
            self._collected_ms += (now_s - self._collection_s) * 1000.0


def _reason(late_ms: float, waited_ms: float, collected_ms: float) -> str:
    if waited_ms > late_ms / 2:
        return f"other processes had the processor for {waited_ms:.0f} ms"
    if collected_ms > late_ms / 2:
        return f"a collection of garbage took {collected_ms:.0f} ms"
    return "the server's own process was at work (a new plan, a start of workers, a large request)"
