"""Graceful shutdown: replies to all accepted requests first."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Sequence

from interlace.control.lifecycle import ModelLifecycle
from interlace.server.dataplane.plane import DataPlane


async def drain(
    lifecycle: ModelLifecycle,
    plane: DataPlane,
    doors: Sequence[Awaitable[None]],
    grace_s: float,
) -> int:
    """Refuse new requests, answer the accepted ones and see their bytes off.

    ``doors`` are the transports' own endings; they bound themselves. Returns how many requests
    were still unanswered when ``grace_s`` ran out: 0 unless a model hangs.
    """
    lifecycle.draining = True
    plane.stop_accepting()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(plane.drained(), grace_s)
    await asyncio.gather(*doors)
    return plane.in_flight
