"""Triton's own HTTP clients against the server, unmodified."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from multiprocessing import shared_memory
from typing import Any

import numpy as np
import pytest

from tests.server.fakes import FakeRuntime, wait_until
from tests.server.stand import Stand

tritonclient = pytest.importorskip("tritonclient.http")
aio = pytest.importorskip("tritonclient.http.aio")

NUMPY = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}


# One client for the module: collected as garbage on the server's thread, gevent would complain.
@pytest.fixture(scope="module")
def client(http: Stand) -> Iterator[Any]:
    client = tritonclient.InferenceServerClient(f"127.0.0.1:{http.port}", concurrency=4)
    yield client
    client.close()


def given(array: Any, datatype: str, binary: bool = True, module: Any = tritonclient) -> list[Any]:
    tensor = module.InferInput("INPUT0", list(array.shape), datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    return [tensor]


def wanted(binary: bool = True, **more: Any) -> list[Any]:
    return [tritonclient.InferRequestedOutput("OUTPUT0", binary_data=binary, **more)]


@pytest.mark.parametrize("datatype", NUMPY)
@pytest.mark.parametrize("binary", [True, False])
def test_every_datatype(client: Any, datatype: str, binary: bool) -> None:
    if datatype == "FP16" and not binary:
        pytest.skip("FP16 has no JSON form")
    array = np.array([[0, 1, 100]]).astype(NUMPY[datatype])
    result = client.infer(
        f"ident_{datatype}", given(array, datatype, binary), outputs=wanted(binary)
    )
    assert np.array_equal(result.as_numpy("OUTPUT0"), array)
    assert result.as_numpy("OUTPUT0").dtype == array.dtype


@pytest.mark.parametrize("binary", [True, False])
def test_bytes(client: Any, binary: bool) -> None:
    array = np.array([[b"one", "zwei ü".encode(), b""]], dtype=np.object_)
    result = client.infer("ident_BYTES", given(array, "BYTES", binary), outputs=wanted(binary))
    found = [v.encode() if isinstance(v, str) else v for v in result.as_numpy("OUTPUT0").ravel()]
    assert found == list(array.ravel())


def test_defaults_ids_and_parameters(client: Any, http: Stand, runtime: FakeRuntime) -> None:
    array = np.ones((2, 3), np.float32)
    http.do(lambda: setattr(runtime, "hold", True))
    waiting = client.async_infer(
        "ident", given(array, "FP32"), request_id="abc", timeout=50_000, priority=1
    )
    wait_until(lambda: bool(runtime.held))
    request = runtime.held[0][0]
    assert request.deadline_ms - request.arrived_ms == pytest.approx(50.0)
    assert (request.rows, request.priority) == (2, 1)
    http.do(lambda: (setattr(runtime, "hold", False), runtime.release()))
    result = waiting.get_result()
    assert result.get_response()["id"] == "abc"
    assert np.array_equal(result.as_numpy("OUTPUT0"), array)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_compression(client: Any, coding: str) -> None:
    array = np.arange(3000, dtype=np.float32).reshape(1, -1)
    result = client.infer(
        "ident",
        given(array, "FP32"),
        outputs=wanted(),
        request_compression_algorithm=coding,
        response_compression_algorithm=coding,
    )
    assert np.array_equal(result.as_numpy("OUTPUT0"), array)


def test_classification(client: Any) -> None:
    array = np.array([[0.25, 1.0, 0.5, 0.75]], np.float32)
    for binary in (True, False):
        result = client.infer(
            "labelled", given(array, "FP32"), outputs=wanted(binary, class_count=2)
        )
        top = [v.decode() if isinstance(v, bytes) else v for v in result.as_numpy("OUTPUT0")[0]]
        assert top == ["1.000000:1:dog", "0.750000:3:elk"]


def test_system_shared_memory(client: Any) -> None:
    array = np.arange(4, dtype=np.float32).reshape(1, -1)
    block = shared_memory.SharedMemory(create=True, size=64)
    try:
        assert block.buf is not None
        block.buf[:16] = array.tobytes()
        client.unregister_system_shared_memory()
        client.unregister_cuda_shared_memory()
        client.register_system_shared_memory("io", "/" + block.name, 64)
        assert client.get_system_shared_memory_status("io")[0]["byte_size"] == 64
        tensor = tritonclient.InferInput("INPUT0", [1, 4], "FP32")
        tensor.set_shared_memory("io", 16)
        output = tritonclient.InferRequestedOutput("OUTPUT0")
        output.set_shared_memory("io", 16, offset=32)
        result = client.infer("ident", [tensor], outputs=[output])
        assert result.get_output("OUTPUT0")["shape"] == [1, 4]
        assert bytes(block.buf[32:48]) == array.tobytes()
        client.unregister_system_shared_memory("io")
    finally:
        block.close()
        block.unlink()


def test_administration(client: Any) -> None:
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("ident") and not client.is_model_ready("nope")
    assert "statistics" in client.get_server_metadata()["extensions"]
    assert client.get_model_metadata("ident")["versions"] == ["1"]
    assert client.get_model_config("ident")["max_batch_size"] == 8
    assert client.get_inference_statistics("ident")["model_stats"][0]["name"] == "ident"
    assert client.get_inference_statistics()["model_stats"]
    assert client.get_model_repository_index() == []
    client.load_model("ident", config="{}", files={"file:1/model.onnx": b"x"})
    client.unload_model("ident")
    assert client.get_trace_settings()["trace_level"] == ["OFF"]
    assert client.get_log_settings()["log_info"] is True


def test_errors_arrive_as_their_text(client: Any) -> None:
    array = np.ones((1, 3), np.int32)
    with pytest.raises(Exception, match="data-type is 'INT32', but model 'ident' expects 'FP32'"):
        client.infer("ident", given(array, "INT32"))
    with pytest.raises(Exception, match="'nope' is not found"):
        client.infer("nope", given(array, "INT32"))


def test_many_at_once(client: Any) -> None:
    arrays = [np.full((1, 4), i, np.float32) for i in range(50)]
    waiting = [client.async_infer("ident", given(array, "FP32")) for array in arrays]
    for array, pending in zip(arrays, waiting, strict=True):
        assert np.array_equal(pending.get_result().as_numpy("OUTPUT0"), array)


def test_the_asyncio_client(http: Stand) -> None:
    async def run() -> None:
        async with aio.InferenceServerClient(f"127.0.0.1:{http.port}") as client:
            assert await client.is_server_live()
            assert (await client.get_model_metadata("ident"))["name"] == "ident"
            arrays = [np.full((1, 1000), i, np.float32) for i in range(20)]
            inputs = [given(array, "FP32", i % 2 == 0) for i, array in enumerate(arrays)]
            results = await asyncio.gather(*(client.infer("ident", each) for each in inputs))
            for array, result in zip(arrays, results, strict=True):
                assert np.array_equal(result.as_numpy("OUTPUT0"), array)
            with pytest.raises(Exception, match="is not found"):
                await client.infer("nope", inputs[0])

    asyncio.run(run())
