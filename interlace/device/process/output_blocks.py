"""A worker's output memory: blocks held per batch until the main process frees it."""

from __future__ import annotations

from collections.abc import Callable

from interlace.shm.arena import Arena

#: Waits for memory to be freed; ``False`` when patience is over.
WaitForMemory = Callable[[], bool]


class OutputBlocks:
    """Blocks of the worker's arena. A batch that finds it full waits for others to be freed."""

    def __init__(self, arena: Arena, wait: WaitForMemory) -> None:
        self.arena = arena
        self._wait = wait
        self._held: dict[int, list[int]] = {}

    def take(self, nbytes: int) -> int:
        """Offset of a block of ``nbytes``.

        Raises:
            MemoryError: it can never fit, or nothing was freed in time.
        """
        offset = self.take_now(nbytes)
        while offset is None:
            if not self._wait():
                raise MemoryError(self.shortage(nbytes))
            offset = self.take_now(nbytes)
        return offset

    def take_now(self, nbytes: int) -> int | None:
        """Offset of a block of ``nbytes``; ``None`` if there is none before others are freed.

        Raises:
            MemoryError: it can never fit.
        """
        offset = self.arena.alloc(nbytes)
        if offset is None and nbytes > self.arena.size_bytes:
            raise MemoryError(
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
        self.arena.free(offset)

    def hold(self, batch: int, offsets: list[int]) -> None:
        """Keep these blocks until ``free(batch)``."""
        self._held[batch] = offsets

    def free(self, batches: tuple[int, ...]) -> None:
        """Free every block of these batches; unknown batches pass."""
        for batch in batches:
            for offset in self._held.pop(batch, ()):
                self.arena.free(offset)
