"""Every call of ``tritonclient.grpc.aio``, against the server whose address is the argument."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import runner
import tritonclient.grpc as plain
import tritonclient.grpc.aio as client
from tensors import FOUR, SLOW, given, pair, same
from tritonclient.utils import InferenceServerException


def connect(address: str) -> client.InferenceServerClient:
    return client.InferenceServerClient(address)


async def check_health_and_metadata(address: str) -> None:
    async with connect(address) as c:
        assert await c.is_server_live() and await c.is_server_ready()
        assert await c.is_model_ready("ident") and not await c.is_model_ready("nope")
        assert "statistics" in (await c.get_server_metadata()).extensions
        assert (await c.get_model_metadata("ident", "1")).name == "ident"
        assert (await c.get_model_config("ident")).config.max_batch_size == 8
        assert (await c.get_inference_statistics("ident")).model_stats[0].name == "ident"


async def check_repository(address: str) -> None:
    async with connect(address) as c:
        assert len((await c.get_model_repository_index()).models) > 5
        await c.unload_model("spare")
        assert not await c.is_model_ready("spare")
        await c.load_model("spare")
        assert await c.is_model_ready("spare")


async def check_infer(address: str) -> None:
    async with connect(address) as c:
        same(await c.infer("ident", [given(plain, FOUR, "FP32")], request_id="seven"), FOUR)
        inputs, total, difference = pair(plain)
        result = await c.infer("pair", inputs)
        same(result, total)
        same(result, difference, "OUTPUT1")


async def check_many_at_once(address: str) -> None:
    async with connect(address) as c:
        rows = [np.full((1, 4), i, np.float32) for i in range(40)]
        results = await asyncio.gather(*(c.infer("ident", [given(plain, r, "FP32")]) for r in rows))
        for row, result in zip(rows, results, strict=True):
            same(result, row)


async def check_compression(address: str) -> None:
    wide = np.zeros((1, 5000), np.float32)
    async with connect(address) as c:
        inputs = [given(plain, wide, "FP32")]
        same(await c.infer("any", inputs, compression_algorithm="gzip"), wide)


async def check_timeout(address: str) -> None:
    async with connect(address) as c:
        try:
            await c.infer("slow", [given(plain, SLOW, "FP32")], client_timeout=0.2)
        except InferenceServerException as error:
            assert "DEADLINE_EXCEEDED" in f"{error.status()} {error}", error
        else:
            raise AssertionError("it did not time out")


async def check_cancelled_task(address: str) -> None:
    async with connect(address) as c:
        task = asyncio.create_task(c.infer("slow", [given(plain, SLOW, "FP32")]))
        await asyncio.sleep(0.1)
        task.cancel()
        assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], BaseException)
        same(await c.infer("ident", [given(plain, FOUR, "FP32")]), FOUR)


async def sent(count: int) -> AsyncIterator[dict[str, Any]]:
    for number in range(count):
        inputs = [given(plain, np.full((1, 4), number, np.float32), "FP32")]
        yield {"model_name": "ident", "inputs": inputs, "request_id": str(number)}


async def check_stream(address: str) -> None:
    async with connect(address) as c:
        seen = 0
        async for result, error in c.stream_infer(sent(6)):
            assert error is None, error
            number = int(result.get_response().id)
            same(result, np.full((1, 4), number, np.float32))
            seen += 1
            if seen == 6:
                break
        assert seen == 6


async def check_stream_cancel(address: str) -> None:
    async with connect(address) as c:

        async def slow() -> AsyncIterator[dict[str, Any]]:
            yield {"model_name": "slow", "inputs": [given(plain, SLOW, "FP32")]}
            await asyncio.sleep(5)

        results = c.stream_infer(slow())
        waiting = asyncio.create_task(anext(results))  # type: ignore[arg-type]
        await asyncio.sleep(0.1)
        results.cancel()
        outcome = (await asyncio.gather(waiting, return_exceptions=True))[0]
        assert isinstance(outcome, BaseException), outcome
        same(await c.infer("ident", [given(plain, FOUR, "FP32")]), FOUR)


if __name__ == "__main__":
    runner.run(globals())
