"""A worker's output memory as the main process sees it, until the last reply is delivered."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from threading import Lock
from typing import Final

from interlace.device.process.error_text import OutputTooLargeError
from interlace.device.process.wire import FreeBatches
from interlace.shm.arena import Arena, ArenaMap

#: Waits until memory was freed more often than that; ``False`` when patience is over.
WaitForMemory = Callable[[int], bool]


class OutputBlocks:
    """Blocks of the worker's arena. A batch that finds it full waits for others to be freed.

    Any thread may take and free them. ``frees`` counts how often some were freed.
    """

    def __init__(self, arena: Arena, wait: WaitForMemory) -> None:
        self.arena = arena
        self._wait = wait
        self.frees = 0
        self._held: dict[int, list[int]] = {}
        self._numbers = count(-1, -1)
        self._changing = Lock()

    def number(self) -> int:
        """A new number, below 0, of blocks that are held for something else than a batch."""
        return next(self._numbers)

    def take(self, nbytes: int) -> int:
        """Offset of a block of ``nbytes``.

        Raises:
            OutputTooLargeError: it can never fit.
            MemoryError: nothing was freed in time.
        """
        frees = self.frees
        while (offset := self.take_now(nbytes)) is None:
            if not self._wait(frees):
                raise MemoryError(self.shortage(nbytes))
            frees = self.frees
        return offset

    def take_now(self, nbytes: int) -> int | None:
        """Offset of a block of ``nbytes``; ``None`` if there is none before others are freed.

        Raises:
            OutputTooLargeError: it can never fit.
        """
        with self._changing:
            offset = self.arena.alloc(nbytes)
        if offset is None and nbytes > self.arena.size_bytes:
            raise OutputTooLargeError(
                f"a tensor of {nbytes} bytes for a whole batch does not fit the worker's "
                f"arena of {self.arena.size_bytes} bytes; allow smaller batches"
            )
        return offset

    def shortage(self, nbytes: int) -> str:
        """Why there is no block of that size now."""
        return (
            f"no room for {nbytes} bytes of a batch: {self.arena.used_bytes} of "
            f"{self.arena.size_bytes} bytes hold replies that are not delivered yet"
        )

    def give_back(self, offset: int) -> None:
        """Free a block that no batch holds."""
        with self._changing:
            self.frees += 1
            self.arena.free(offset)

    def trim(self) -> None:
        """Give memory that is free back to the system."""
        with self._changing:
            self.arena.trim()

    def hold(self, batch: int, offsets: list[int]) -> None:
        """Keep these blocks until ``free(batch)``."""
        self._held[batch] = offsets

    def holds(self, batch: int) -> bool:
        """Whether a batch is not freed yet."""
        return batch in self._held

    def free(self, batches: tuple[int, ...]) -> None:
        """Free every block of these batches; unknown batches pass."""
        with self._changing:
            self.frees += 1
            for batch in batches:
                for offset in self._held.pop(batch, ()):
                    self.arena.free(offset)


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

    def lend(self, number: int) -> None:
        """A response, until ``delivered``, or inputs of a call, until ``returned``, lie here."""
        self._held.add(number)

    def returned(self, call: int) -> None:
        """That call is answered; the worker hears of it with the answer."""
        self._held.discard(call)
        if self._retired:
            self._dispose()

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
        if not self._retired:
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
