"""Calls of ``tritonclient.grpc.aio`` alone, or with answers of its own."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import tritonclient.grpc.aio as client
from tensors import FOUR, SLOW, given, same
from tritonclient.utils import InferenceServerException


async def check_metadata(c: Any) -> None:
    assert "statistics" in (await c.get_server_metadata()).extensions
    assert (await c.get_model_metadata("ident", "1")).name == "ident"
    assert (await c.get_model_config("ident")).config.max_batch_size == 8
    assert (await c.get_inference_statistics("ident")).model_stats[0].name == "ident"
    assert len((await c.get_model_repository_index()).models) > 5


async def check_compression(c: Any) -> None:
    wide = np.zeros((1, 5000), np.float32)
    inputs = [given(client, wide, "FP32")]
    same(await c.infer("any", inputs, compression_algorithm="gzip"), wide)


async def check_timeout(c: Any) -> None:
    try:
        await c.infer("slow", [given(client, SLOW, "FP32")], client_timeout=0.2)
    except InferenceServerException as error:
        assert "DEADLINE_EXCEEDED" in f"{error.status()} {error}", error
    else:
        raise AssertionError("it did not time out")


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
    waiting = asyncio.create_task(anext(results))  # type: ignore[arg-type]
    await asyncio.sleep(0.1)
    results.cancel()
    outcome = (await asyncio.gather(waiting, return_exceptions=True))[0]
    assert isinstance(outcome, BaseException), outcome
    same(await c.infer("ident", [given(client, FOUR, "FP32")]), FOUR)
