"""Calls that only ``tritonclient.http.aio`` and ``tritonclient.grpc.aio`` can make."""

import asyncio
from types import ModuleType
from typing import Any

import numpy as np

from .tensors import FOUR, SLOW, given, same


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
