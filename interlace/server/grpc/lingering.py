"""Sockets of flooding clients, closed late so that reconnecting takes them time."""

from __future__ import annotations

import socket
import time
from collections import deque


class LingeringSockets:
    """Sockets that are not read any more, each kept for ``linger_s``, ``limit`` of them at most.

    A peer that waits for the end before it connects again is held to one connection in that time.
    """

    def __init__(self, linger_s: float, limit: int) -> None:
        self._linger_s = linger_s
        self._limit = limit
        self._kept: deque[tuple[float, socket.socket]] = deque()

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, sock: socket.socket) -> None:
        """Close it later; the oldest now, where there are too many."""
        self._kept.append((time.monotonic() + self._linger_s, sock))
        if len(self._kept) > self._limit:
            self._kept.popleft()[1].close()

    def expire(self) -> None:
        """Close those whose time has passed."""
        now_s = time.monotonic()
        while self._kept and self._kept[0][0] <= now_s:
            self._kept.popleft()[1].close()

    def close(self) -> None:
        """Close all."""
        while self._kept:
            self._kept.popleft()[1].close()
