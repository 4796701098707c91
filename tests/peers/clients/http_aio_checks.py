"""Every call of ``tritonclient.http.aio``, against the server whose address is the argument."""

from __future__ import annotations

import asyncio

import numpy as np
import runner
import tritonclient.http as plain
import tritonclient.http.aio as client
from tensors import FOUR, SLOW, given, pair, same
from tritonclient.utils import InferenceServerException


def connect(address: str) -> client.InferenceServerClient:
    return client.InferenceServerClient(address)


async def check_health_and_metadata(address: str) -> None:
    async with connect(address) as c:
        assert await c.is_server_live() and await c.is_server_ready()
        assert await c.is_model_ready("ident") and not await c.is_model_ready("nope")
        assert "extensions" in await c.get_server_metadata()
        assert (await c.get_model_metadata("ident", "1"))["name"] == "ident"
        assert (await c.get_model_config("ident"))["max_batch_size"] == 8
        assert (await c.get_inference_statistics("ident"))["model_stats"][0]["name"] == "ident"


async def check_repository(address: str) -> None:
    async with connect(address) as c:
        assert len(await c.get_model_repository_index()) > 5
        await c.unload_model("spare")
        assert not await c.is_model_ready("spare")
        await c.load_model("spare")
        assert await c.is_model_ready("spare")


async def check_settings(address: str) -> None:
    async with connect(address) as c:
        assert (await c.get_trace_settings("ident"))["trace_level"] == ["OFF"]
        assert (await c.get_log_settings())["log_error"] is True


async def check_infer(address: str) -> None:
    async with connect(address) as c:
        same(await c.infer("ident", [given(plain, FOUR, "FP32")], request_id="seven"), FOUR)
        inputs, total, difference = pair(plain)
        result = await c.infer("pair", inputs)
        same(result, total)
        same(result, difference, "OUTPUT1")
        words = np.array([["a", "bcd"]], np.object_)
        got = (await c.infer("text", [given(plain, words, "BYTES")])).as_numpy("OUTPUT0")
        assert [b.decode() for b in got.ravel()] == ["a", "bcd"]


async def check_many_at_once(address: str) -> None:
    async with connect(address) as c:
        rows = [np.full((1, 4), i, np.float32) for i in range(40)]
        results = await asyncio.gather(*(c.infer("ident", [given(plain, r, "FP32")]) for r in rows))
        for row, result in zip(rows, results, strict=True):
            same(result, row)


async def check_compression(address: str) -> None:
    wide = np.zeros((1, 5000), np.float32)
    async with connect(address) as c:
        for how in ("gzip", "deflate"):
            result = await c.infer(
                "any", [given(plain, wide, "FP32")],
                request_compression_algorithm=how, response_compression_algorithm=how,
            )  # fmt: skip
            same(result, wide)


async def check_error(address: str) -> None:
    async with connect(address) as c:
        try:
            await c.infer("nope", [given(plain, FOUR, "FP32")])
        except InferenceServerException as error:
            assert "404" in str(error) and "nope" in str(error), error
        else:
            raise AssertionError("it was not refused")


async def check_cancelled_task(address: str) -> None:
    async with connect(address) as c:
        task = asyncio.create_task(c.infer("slow", [given(plain, SLOW, "FP32")]))
        await asyncio.sleep(0.1)
        task.cancel()
        assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], BaseException)
        same(await c.infer("ident", [given(plain, FOUR, "FP32")]), FOUR)


if __name__ == "__main__":
    runner.run(globals())
