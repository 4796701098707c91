"""The public client library, in all its ways, against the server."""

from __future__ import annotations

import asyncio
import queue
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException

from tests.server.grpc.fakes import Main

Array = np.ndarray[Any, np.dtype[Any]]


def tensor(value: Array, name: str = "INPUT", datatype: str = "FP32") -> triton.InferInput:
    made = triton.InferInput(name, list(value.shape), datatype)
    made.set_data_from_numpy(value)
    return made


def numbers(*shape: int) -> Array:
    return np.random.default_rng(1).random(shape, dtype=np.float32)


def test_one_tensor_comes_back(echo: Main) -> None:
    value = numbers(1, 16)
    with triton.InferenceServerClient(echo.target) as client:
        result = client.infer("echo", [tensor(value)], request_id="id-é")
    assert np.array_equal(result.as_numpy("OUTPUT"), value)
    response = result.get_response()
    assert (response.model_name, response.model_version, response.id) == ("echo", "3", "id-é")


@pytest.mark.parametrize("size", [0, 1, 16_000, 70_000, 150_528, 3_000_000])
def test_any_size_goes_both_ways(echo: Main, size: int) -> None:
    value = numbers(1, size)
    with triton.InferenceServerClient(echo.target) as client:
        for _ in range(2):
            result = client.infer("echo", [tensor(value)])
            assert np.array_equal(result.as_numpy("OUTPUT"), value)


def test_several_tensors_keep_their_names_and_alignment(echo: Main) -> None:
    words = np.array([["ab", "", "xyz" * 100]], dtype=object)
    inputs = [
        tensor(numbers(1, 3), "INPUT_A"),
        tensor(words, "INPUT_B", "BYTES"),
        tensor(np.array([[True, False]]), "INPUT_C", "BOOL"),
        tensor(numbers(1, 100_000), "INPUT_D"),
    ]
    with triton.InferenceServerClient(echo.target) as client:
        result = client.infer("echo", inputs, parameters={"on": True, "note": "x", "n": 3})
    assert np.array_equal(result.as_numpy("OUTPUT_A"), numbers(1, 3))
    assert [w.decode() for w in result.as_numpy("OUTPUT_B")[0]] == ["ab", "", "xyz" * 100]
    assert result.as_numpy("OUTPUT_C").tolist() == [[True, False]]
    assert np.array_equal(result.as_numpy("OUTPUT_D"), numbers(1, 100_000))
    call = echo.plane.calls[-1]
    assert all(each.span.offset % 64 == 0 for each in call.inputs)
    assert dict(call.parameters) == {"on": True, "note": "x", "n": 3}


def test_outputs_come_in_the_order_they_are_named(echo: Main) -> None:
    inputs = [tensor(numbers(1, 2), "INPUT_A"), tensor(numbers(1, 3), "INPUT_B")]
    wanted = [triton.InferRequestedOutput("OUTPUT_B"), triton.InferRequestedOutput("OUTPUT_A")]
    with triton.InferenceServerClient(echo.target) as client:
        response = client.infer("echo", inputs, outputs=wanted).get_response()
        assert [each.name for each in response.outputs] == ["OUTPUT_B", "OUTPUT_A"]
        with pytest.raises(InferenceServerException, match="no output 'NOPE'"):
            client.infer("echo", inputs, outputs=[triton.InferRequestedOutput("NOPE")])


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_requests_are_read(echo: Main, encoding: str) -> None:
    value = np.zeros((1, 100_000), np.float32)
    with triton.InferenceServerClient(echo.target) as client:
        result = client.infer("echo", [tensor(value)], compression_algorithm=encoding)
    assert np.array_equal(result.as_numpy("OUTPUT"), value)


def test_the_deadline_reaches_the_data_plane(echo: Main) -> None:
    with triton.InferenceServerClient(echo.target) as client:
        client.infer("echo", [tensor(numbers(1, 2))])
        assert echo.plane.calls[-1].budget_ms is None
        client.infer("echo", [tensor(numbers(1, 2))], client_timeout=7.0)
        budget_ms = echo.plane.calls[-1].budget_ms
        assert budget_ms is not None and 5_000.0 < budget_ms <= 7_500.0


def test_a_missed_deadline_cancels(echo: Main) -> None:
    before = len(echo.plane.cancelled)
    with triton.InferenceServerClient(echo.target) as client:
        with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
            client.infer("never", [tensor(numbers(1, 2))], client_timeout=0.1)
        assert client.infer("echo", [tensor(numbers(1, 2))]).as_numpy("OUTPUT").shape == (1, 2)
    echo.settled()
    assert len(echo.plane.cancelled) == before + 1


def test_async_calls_and_cancellation(echo: Main) -> None:
    before = len(echo.plane.cancelled)
    done: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with triton.InferenceServerClient(echo.target) as client:
        handle = client.async_infer(
            "never", [tensor(numbers(1, 2))], lambda result, error: done.put((result, error))
        )
        while not echo.plane.calls:
            time.sleep(0.005)
        handle.cancel()
        _, error = done.get(timeout=10)
        assert "Locally cancelled" in str(error)
        echo.settled()
    assert len(echo.plane.cancelled) == before + 1


def test_a_client_that_goes_away_is_cancelled(echo: Main) -> None:
    before = len(echo.plane.cancelled)
    client = triton.InferenceServerClient(echo.target)
    client.async_infer("never", [tensor(numbers(1, 2))], lambda result, error: None)
    while not echo.plane.calls:
        time.sleep(0.005)
    client.close()
    echo.settled()
    assert len(echo.plane.cancelled) == before + 1


def test_a_hundred_calls_share_one_connection(echo: Main) -> None:
    with triton.InferenceServerClient(echo.target) as client:

        def one(i: int) -> bool:
            value = np.full((1, 1 + i * 97), i, np.float32)
            model = "echo" if i % 3 else "slow-20"
            result = client.infer(model, [tensor(value)], request_id=str(i))
            return bool(result.get_response().id == str(i)) and np.array_equal(
                result.as_numpy("OUTPUT"), value
            )

        with ThreadPoolExecutor(32) as pool:
            assert all(pool.map(one, range(200)))


def test_many_connections(echo: Main) -> None:
    options = [("grpc.use_local_subchannel_pool", 1)]
    clients = [triton.InferenceServerClient(echo.target, channel_args=options) for _ in range(30)]
    for i, client in enumerate(clients):
        value = np.full((1, 4), i, np.float32)
        assert np.array_equal(client.infer("echo", [tensor(value)]).as_numpy("OUTPUT"), value)
    for client in clients:
        client.close()


def test_keepalive_pings_are_welcome(echo: Main) -> None:
    keepalive = triton.KeepAliveOptions(
        keepalive_time_ms=20, keepalive_permit_without_calls=True, http2_max_pings_without_data=0
    )
    with triton.InferenceServerClient(echo.target, keepalive_options=keepalive) as client:
        for _ in range(3):
            time.sleep(0.1)
            assert client.infer("slow-50", [tensor(numbers(1, 2))]).as_numpy("OUTPUT").size == 2


def test_a_stream_answers_as_results_come(echo: Main) -> None:
    got: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with triton.InferenceServerClient(echo.target) as client:
        client.start_stream(lambda result, error: got.put((result, error)))
        client.async_stream_infer("slow-200", [tensor(numbers(1, 2))], request_id="late")
        client.async_stream_infer("echo", [tensor(numbers(1, 3))], request_id="soon")
        client.async_stream_infer("refuse-bad_input", [tensor(numbers(1, 3))], request_id="bad")
        client.async_stream_infer("echo", [tensor(numbers(1, 200_000))], request_id="big")
        seen = [got.get(timeout=10) for _ in range(4)]
        client.stop_stream()
    results = {r.get_response().id: r for r, error in seen if error is None}
    assert set(results) == {"late", "soon", "big"}
    assert np.array_equal(results["big"].as_numpy("OUTPUT"), numbers(1, 200_000))
    assert results["soon"].get_response().parameters["triton_final_response"].bool_param
    assert seen[-1][0].get_response().id == "late"
    errors = [str(error) for _, error in seen if error is not None]
    assert len(errors) == 1 and "refused: bad_input" in errors[0]


def test_stream_errors_can_be_statuses(echo: Main) -> None:
    got: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with triton.InferenceServerClient(echo.target) as client:
        client.start_stream(
            lambda result, error: got.put((result, error)), headers={"triton_grpc_error": "true"}
        )
        client.async_stream_infer("never", [tensor(numbers(1, 2))])
        client.async_stream_infer("refuse-overloaded", [tensor(numbers(1, 2))])
        _, error = got.get(timeout=10)
        assert error.status() == "StatusCode.RESOURCE_EXHAUSTED"
        client.stop_stream()


def test_a_stream_can_be_cancelled(echo: Main) -> None:
    got: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with triton.InferenceServerClient(echo.target) as client:
        client.start_stream(lambda result, error: got.put((result, error)))
        for _ in range(3):
            client.async_stream_infer("never", [tensor(numbers(1, 2))])
        while len(echo.plane.calls) < 3:
            time.sleep(0.005)
        client.stop_stream(cancel_requests=True)
    echo.settled()


def test_the_aio_client(echo: Main) -> None:
    async def work() -> None:
        async with triton_aio.InferenceServerClient(echo.target) as client:
            values = [numbers(1, n) for n in (1, 100, 50_000)]
            results = await asyncio.gather(
                *(client.infer("echo", [tensor(value)]) for value in values)
            )
            for value, result in zip(values, results, strict=True):
                assert np.array_equal(result.as_numpy("OUTPUT"), value)

            async def requests() -> Any:
                for i in range(5):
                    yield {
                        "model_name": "echo",
                        "inputs": [tensor(values[1])],
                        "request_id": str(i),
                    }

            seen = [
                result.get_response().id
                async for result, error in client.stream_infer(requests())
                if error is None
            ]
            assert sorted(seen) == list("01234")

    asyncio.run(work())
