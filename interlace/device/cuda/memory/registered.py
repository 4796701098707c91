"""Shared arenas as the GPU sees them: page-locked and mapped, read by kernels in place."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np

from interlace.core.tensor import Span
from interlace.device.cuda.driver.api import CudaError, Driver, MappedBlock
from interlace.shm.arena import Arena, ArenaMap


class RegisteredArenas:
    """Arenas by number, registered with the driver once, on first use or before.

    Registering takes every page of an arena and keeps it: no process may punch holes into a
    registered arena (``Arena.trim``, ``Arena.wipe``), for the GPU would go on reading the old
    pages. It also takes long for large arenas, so ``register`` what is known at the start.
    """

    def __init__(self, driver: Driver, arenas: ArenaMap, owner_pid: int) -> None:
        self._driver = driver
        self.arenas = arenas  #: as the host sees them
        self._owner_pid = owner_pid
        self._mapped: dict[int, MappedBlock] = {}
        self._adopted: dict[int, Arena] = {}

    def add(self, arena: Arena) -> None:
        """Register an arena that this process has mapped, to write into.

        Raises:
            CudaError: it cannot be registered; it is not known then.
        """
        self.arenas.add(arena)
        try:
            self.register(arena.number)
        except CudaError:
            self.arenas.forget(arena.number)
            raise

    def register(self, number: int) -> MappedBlock:
        """Map an arena, lock its pages and make it known to the GPU; later calls are cheap.

        Raises:
            ValueError: the arena is gone.
        """
        known = self._mapped.get(number)
        if known is not None:
            return known
        try:
            mapped = self._register(number)
        except CudaError as error:
            if error.sticky or not self.arenas.memory(number).readonly:
                raise
            mapped = self._register_writable(number)
        self._mapped[number] = mapped
        return mapped

    def address(self, span: Span) -> int:
        """Where the GPU finds the bytes of a span.

        Raises:
            ValueError: the arena is gone, or the span reaches out of it.
        """
        number, offset, nbytes = span
        mapped = self._mapped.get(number) or self.register(number)
        if offset < 0 or nbytes < 0 or offset + nbytes > mapped.nbytes:
            raise ValueError(
                f"{nbytes} bytes at {offset} reach out of arena {number} of {mapped.nbytes} bytes"
            )
        return mapped.device + offset

    def forget(self, number: int) -> None:
        """Unregister an arena and unmap it; unknown numbers pass. Nothing on the GPU uses it.

        Raises:
            CudaError: the driver refused; the arena stays mapped, which is safe.
        """
        mapped = self._mapped.pop(number, None)
        if mapped is not None:
            self._driver.unregister(mapped)
        self.arenas.forget(number)
        adopted = self._adopted.pop(number, None)
        if adopted is not None:
            adopted.close()

    def close(self) -> None:
        """Forget every registered arena. Every step is tried."""
        with ExitStack() as steps:
            for number in list(self._mapped):
                steps.callback(self.forget, number)

    def _register(self, number: int) -> MappedBlock:
        memory = self.arenas.memory(number)
        return self._driver.register(_host(memory), len(memory), memory.readonly)

    def _register_writable(self, number: int) -> MappedBlock:
        """Not every platform takes read-only pages: map the arena anew, but write nothing to it."""
        self.arenas.forget(number)
        arena = Arena.adopt(self._owner_pid, number)
        self.arenas.add(arena)
        try:
            mapped = self._register(number)
        except CudaError:
            self.arenas.forget(number)
            arena.close()
            raise
        self._adopted[number] = arena
        return mapped


def _host(memory: memoryview) -> int:
    """Where a buffer lies, also one that is read-only."""
    return int(np.frombuffer(memory, np.uint8).ctypes.data)
