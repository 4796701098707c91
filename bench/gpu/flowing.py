"""Rows of a part that lives in an event loop, handed out as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

from bench.gpu.rows import Row


def flow(rows: AsyncIterator[Row]) -> Iterator[Row]:
    """Run the loop from one row to the next; between them nothing moves, which no part minds."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        while True:
            try:
                yield loop.run_until_complete(anext(rows))
            except StopAsyncIteration:
                return
    finally:
        asyncio.set_event_loop(None)
        loop.close()
