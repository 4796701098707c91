"""A bound on the heap that unfinished requests use together, over all connections."""

from __future__ import annotations

from interlace.core.errors import Reason, ServeError


class HeapBudget:
    """Bytes that requests hold outside of the arena, ``limit_bytes`` at most."""

    __slots__ = ("limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0


class HeapReservation:
    """What one request holds of a budget; ``release`` gives it back, once."""

    __slots__ = ("_budget", "nbytes")

    def __init__(self, budget: HeapBudget) -> None:
        self._budget = budget
        self.nbytes = 0

    def resize(self, nbytes: int) -> None:
        """Hold that many bytes instead of those held so far.

        Raises:
            ServeError: OVERLOADED; what was held before is held still.
        """
        budget = self._budget
        used_bytes = budget.used_bytes + nbytes - self.nbytes
        if used_bytes > budget.limit_bytes:
            raise ServeError(
                Reason.OVERLOADED,
                f"unfinished requests hold {budget.used_bytes} of {budget.limit_bytes} bytes of "
                f"memory already",
                retry_after_ms=1000.0,
            )
        budget.used_bytes = used_bytes
        self.nbytes = nbytes

    def release(self) -> None:
        """Hold nothing any more."""
        self._budget.used_bytes -= self.nbytes
        self.nbytes = 0
