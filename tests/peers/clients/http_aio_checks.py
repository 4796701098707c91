"""Calls of ``tritonclient.http.aio`` alone, or with answers of its own."""

from typing import Any

import numpy as np
import tritonclient.http.aio as client
from tensors import FOUR, given, same
from tritonclient.utils import InferenceServerException


async def check_metadata(c: Any) -> None:
    assert "extensions" in await c.get_server_metadata()
    assert (await c.get_model_metadata("ident", "1"))["name"] == "ident"
    assert (await c.get_model_config("ident"))["max_batch_size"] == 8
    assert (await c.get_inference_statistics("ident"))["model_stats"][0]["name"] == "ident"
    assert len(await c.get_model_repository_index()) > 5


async def check_settings(c: Any) -> None:
    assert (await c.get_trace_settings("ident"))["trace_level"] == ["OFF"]
    assert (await c.get_log_settings())["log_error"] is True


async def check_compression(c: Any) -> None:
    wide = np.zeros((1, 5000), np.float32)
    inputs = [given(client, wide, "FP32")]
    for how in ("gzip", "deflate"):
        both = {"request_compression_algorithm": how, "response_compression_algorithm": how}
        same(await c.infer("any", inputs, **both), wide)


async def check_error(c: Any) -> None:
    try:
        await c.infer("nope", [given(client, FOUR, "FP32")])
    except InferenceServerException as error:
        assert "404" in str(error) and "nope" in str(error), error
    else:
        raise AssertionError("it was not refused")
