"""The public client library, in all its ways, against the server."""

from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from interlace.core.errors import Reason, ServeError
from interlace.proto.messages import HEALTH, SERVICE
from tests.server.fakes import wait_until
from tests.server.grpc.fakes import Main

Array = np.ndarray[Any, np.dtype[Any]]


def tensor(value: Array, name: str = "INPUT", datatype: str = "FP32") -> triton.InferInput:
    made = triton.InferInput(name, list(value.shape), datatype)
    made.set_data_from_numpy(value)
    return made


def numbers(*shape: int) -> Array:
    return np.random.default_rng(1).random(shape, dtype=np.float32)


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
    assert dict(call.decoded.parameters) == {"on": True, "note": "x", "n": 3}


def test_outputs_come_in_the_order_they_are_named(echo: Main) -> None:
    inputs = [tensor(numbers(1, 2), "INPUT_A"), tensor(numbers(1, 3), "INPUT_B")]
    wanted = [triton.InferRequestedOutput("OUTPUT_B"), triton.InferRequestedOutput("OUTPUT_A")]
    with triton.InferenceServerClient(echo.target) as client:
        response = client.infer("echo", inputs, outputs=wanted).get_response()
        assert [each.name for each in response.outputs] == ["OUTPUT_B", "OUTPUT_A"]
        with pytest.raises(InferenceServerException, match="no output 'NOPE'"):
            client.infer("echo", inputs, outputs=[triton.InferRequestedOutput("NOPE")])


def test_the_deadline_reaches_the_data_plane(echo: Main) -> None:
    with triton.InferenceServerClient(echo.target) as client:
        client.infer("echo", [tensor(numbers(1, 2))])
        assert echo.plane.calls[-1].budget_ms is None
        client.infer("echo", [tensor(numbers(1, 2))], client_timeout=7.0)
        budget_ms = echo.plane.calls[-1].budget_ms
        assert budget_ms is not None and 5_000.0 < budget_ms <= 7_500.0


def test_a_client_that_goes_away_is_cancelled(echo: Main) -> None:
    before = len(echo.plane.cancelled)
    client = triton.InferenceServerClient(echo.target)
    client.async_infer("never", [tensor(numbers(1, 2))], lambda result, error: None)
    wait_until(lambda: bool(echo.plane.calls))
    client.close()
    echo.settled()
    assert len(echo.plane.cancelled) == before + 1


def test_every_method_is_there(echo: Main) -> None:
    every = {f"/{s.full_name}/{method.name}" for s in (SERVICE, HEALTH) for method in s.methods}
    assert echo.server._service.paths == every


def test_a_model_is_loaded_with_the_callers_files(echo: Main) -> None:
    data = b"\0\1\2" * 100_000
    with triton.InferenceServerClient(echo.target) as client:
        client.load_model("mine", config='{"max_batch_size": 4}', files={"file:1/model.onnx": data})
        client.unload_model("mine")
        assert echo.control.calls == [
            ("load", "mine", '{"max_batch_size": 4}', {"1/model.onnx": data}),
            ("unload", "mine"),
        ]
        echo.control.error = ServeError(Reason.BACKEND, "failed to load 'mine'")
        with pytest.raises(InferenceServerException, match="failed to load 'mine'"):
            client.load_model("mine")
        echo.control.error = None
