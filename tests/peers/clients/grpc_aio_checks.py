"""Streams of ``tritonclient.grpc.aio``."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import tritonclient.grpc.aio as client

from .tensors import FOUR, SLOW, given, same


async def sent(count: int) -> AsyncIterator[dict[str, Any]]:
    for number in range(count):
        inputs = [given(client, np.full((1, 4), number, np.float32), "FP32")]
        yield {"model_name": "ident", "inputs": inputs, "request_id": str(number)}


async def check_stream(c: Any) -> None:
    seen = 0
    async for result, error in c.stream_infer(sent(6)):
        assert error is None, error
        number = int(result.get_response().id)
        same(result, np.full((1, 4), number, np.float32))
        seen += 1
        if seen == 6:
            break
    assert seen == 6


async def check_stream_cancel(c: Any) -> None:
    async def slow() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "slow", "inputs": [given(client, SLOW, "FP32")]}
        await asyncio.sleep(5)

    results = c.stream_infer(slow())
    waiting = asyncio.create_task(anext(results))
    await asyncio.sleep(0.1)
    results.cancel()
    outcome = (await asyncio.gather(waiting, return_exceptions=True))[0]
    assert isinstance(outcome, BaseException), outcome
    same(await c.infer("ident", [given(client, FOUR, "FP32")]), FOUR)
