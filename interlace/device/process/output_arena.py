"""A worker's output memory as the main process sees it, until the last reply is delivered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from interlace.device.process.wire import FreeBatches
from interlace.shm.arena import Arena, ArenaMap

#: Freed batches that wait for a frame to ride along with, at most.
_FREED_MAX: Final = 256


class HeldBatches:
    """Which worker's memory the replies of each batch refer to, for all workers of a device."""

    def __init__(self, arenas: ArenaMap) -> None:
        self.arenas = arenas
        self.by_batch: dict[int, OutputArena] = {}

    def free(self, batch: int) -> None:
        """The replies of that batch are delivered; unknown batches pass."""
        held_by = self.by_batch.pop(batch, None)
        if held_by is not None:
            held_by.delivered(batch)


class OutputArena:
    """The output arena of one worker, and the batches whose replies still refer to it.

    Freed batches are sent along with the next batch, so that freeing costs the worker no wake-up of
    its own, unless one of its lines waits for memory. ``tell`` sends the worker a frame.
    """

    def __init__(
        self, held: HeldBatches, arena: Arena, tell: Callable[[FreeBatches], None]
    ) -> None:
        self.arena = arena
        self._held_batches = held
        self._tell = tell
        self._held: set[int] = set()
        self._freed: list[int] = []
        self._starved: set[str] = set()
        self._retired = False
        held.arenas.add(arena)

    @property
    def freed(self) -> tuple[int, ...]:
        """Batches delivered since the worker was last told; ``told`` once they are sent."""
        return tuple(self._freed)

    def told(self) -> None:
        """The worker has been sent what is ``freed``."""
        self._freed.clear()

    def hold(self, batch: int) -> None:
        """The outputs of that batch lie here until it is freed."""
        self._held.add(batch)
        self._held_batches.by_batch[batch] = self

    def delivered(self, batch: int) -> None:
        """The replies of that batch are delivered."""
        self._held.discard(batch)
        if self._retired:
            self._dispose()
            return
        self._freed.append(batch)
        if self._starved or len(self._freed) >= _FREED_MAX:
            self._send_freed()

    def starve(self, line: str) -> None:
        """A batch of that line waits for memory: what is freed is sent, and from now on at once."""
        self._starved.add(line)
        if self._freed:
            self._send_freed()

    def feed(self, line: str) -> None:
        """The batch of that line waits no more."""
        self._starved.discard(line)

    def retire(self) -> None:
        """The worker is gone: give the memory back once the last reply is delivered."""
        self._retired = True
        self._dispose()

    def _dispose(self) -> None:
        if not self._held:
            self._held_batches.arenas.forget(self.arena.number)
            self.arena.wipe()
            self.arena.close()

    def _send_freed(self) -> None:
        self._tell(FreeBatches(self.freed))
        self.told()
