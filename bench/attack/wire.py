"""Raw bytes to a port over many connections at once, and what came back."""

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

_READ: Final = 1 << 16


class Sent(NamedTuple):
    """What came back for some bytes: the answer, whether the server closed, how long it took."""

    answer: bytes
    closed: bool
    seconds: float


async def exchange(port: int, data: bytes, limit_s: float) -> Sent:
    """Send bytes, read until the server closes or ``limit_s`` has passed without a byte."""
    began_s = time.monotonic()
    answer, closed, writer = bytearray(), False, None
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        with suppress(OSError):
            await writer.drain()
        while True:
            piece = await asyncio.wait_for(reader.read(_READ), limit_s)
            if not piece:
                closed = True
                break
            answer += piece
    except TimeoutError:
        pass
    except OSError:
        closed = True
    finally:
        if writer is not None:
            writer.close()
    return Sent(bytes(answer), closed, time.monotonic() - began_s)


async def flood(
    port: int, payloads: Iterable[bytes], connections: int, limit_s: float
) -> list[Sent]:
    """Each payload on a connection of its own, so many at a time."""
    source: Iterator[bytes] = iter(payloads)
    found: list[Sent] = []

    async def one_after_the_other() -> None:
        for data in source:
            found.append(await exchange(port, data, limit_s))

    await asyncio.gather(*(one_after_the_other() for _ in range(connections)))
    return found


def run_flood(port: int, payloads: Iterable[bytes], connections: int, limit_s: float) -> list[Sent]:
    """``flood`` in a loop of its own."""
    import uvloop

    found: list[Sent] = uvloop.run(flood(port, payloads, connections, limit_s))
    return found
