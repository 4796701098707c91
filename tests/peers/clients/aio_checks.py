"""Calls that ``tritonclient.http.aio`` and ``tritonclient.grpc.aio`` both have."""

import asyncio
from types import ModuleType
from typing import Any

import numpy as np
from tensors import FOUR, SLOW, given, pair, same


async def check_health(c: Any) -> None:
    assert await c.is_server_live() and await c.is_server_ready()
    assert await c.is_model_ready("ident") and not await c.is_model_ready("nope")


async def check_loading(c: Any) -> None:
    await c.unload_model("spare")
    assert not await c.is_model_ready("spare")
    await c.load_model("spare")
    assert await c.is_model_ready("spare")


async def check_infer(c: Any, client: ModuleType) -> None:
    same(await c.infer("ident", [given(client, FOUR, "FP32")], request_id="seven"), FOUR)
    inputs, total, difference = pair(client)
    result = await c.infer("pair", inputs)
    same(result, total)
    same(result, difference, "OUTPUT1")
    words = np.array([["a", "bcd"]], np.object_)
    got = (await c.infer("text", [given(client, words, "BYTES")])).as_numpy("OUTPUT0")
    assert [b.decode() for b in got.ravel()] == ["a", "bcd"]


async def check_many_at_once(c: Any, client: ModuleType) -> None:
    rows = [np.full((1, 4), i, np.float32) for i in range(40)]
    results = await asyncio.gather(*(c.infer("ident", [given(client, r, "FP32")]) for r in rows))
    for row, result in zip(rows, results, strict=True):
        same(result, row)


async def check_cancelled_task(c: Any, client: ModuleType) -> None:
    task = asyncio.create_task(c.infer("slow", [given(client, SLOW, "FP32")]))
    await asyncio.sleep(0.1)
    task.cancel()
    assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], BaseException)
    same(await c.infer("ident", [given(client, FOUR, "FP32")]), FOUR)
