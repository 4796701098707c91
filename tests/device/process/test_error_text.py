"""What libraries say of values that no model can use, and of faults that are the model's own."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument

from interlace.core.model import Format
from interlace.device.process.error_text import OutputTooLargeError, batch_failure
from interlace.device.process.wire import Failed, RunBatch

TABLE = torch.zeros(10, 4)
BEYOND = torch.tensor([[1, 50]])


class Lookup(torch.nn.Module):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(ids, TABLE)


def _scripted() -> object:
    return torch.jit.trace(Lookup(), torch.zeros(1, 2, dtype=torch.int64))(BEYOND)


def _session(op: str, weights: dict[str, np.ndarray], *inputs: str) -> InferenceSession:
    kept = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    asked = [helper.make_tensor_value_info(n, TensorProto.INT64, None) for n in inputs]
    found = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node(op, [*weights, *inputs], ["y"], name="it")
    graph = helper.make_graph([node], "g", asked, [found], kept)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])


def _onnx() -> object:
    session = _session("Gather", {"w": np.zeros((10, 4), np.float32)}, "ids")
    return session.run(None, {"ids": BEYOND.numpy()})


def _onnx_reshape() -> object:
    session = _session("Reshape", {"w": np.zeros(6, np.float32)}, "to")
    return session.run(None, {"to": np.array([2, 4])})


def _script_view() -> object:
    @torch.jit.script
    def view(x: torch.Tensor, to: list[int]) -> torch.Tensor:
        return x.view(to)

    return view(torch.zeros(6), [2, 4])


def _script_raise() -> object:
    @torch.jit.script
    def positive(x: torch.Tensor) -> torch.Tensor:
        if bool((x < 0).any()):
            raise ValueError("x must be positive")
        return x

    return positive(-torch.ones(1))


def _failed(error: BaseException, format: Format, runs: bool) -> Failed:
    run = RunBatch(3, "m/1#0", (1,), (), (), ())
    return batch_failure(run, error, format, lambda: runs)


@pytest.mark.parametrize(
    "call",
    [
        lambda: Lookup()(BEYOND),
        lambda: TABLE.gather(1, BEYOND),
        lambda: TABLE.index_select(0, BEYOND[0]),
        lambda: np.zeros(10)[BEYOND.numpy()],
        _scripted,
        _onnx,
    ],
)
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_an_index_beyond_a_table(call: Callable[[], object]) -> None:
    with pytest.raises((IndexError, RuntimeError, InvalidArgument)) as error:
        call()
    failed = _failed(error.value, Format.FACTORY, runs=False)
    assert failed.bad_input and "model 'm' cannot use these values: " in failed.detail
    assert "out of" in failed.detail and "\n" not in failed.detail


@pytest.mark.parametrize(
    ("call", "format", "words"),
    [
        (_onnx_reshape, Format.ONNX, "Reshape node 'it': The input tensor cannot be reshaped"),
        (_script_view, Format.TORCHSCRIPT, "shape '[2, 4]' is invalid for input of size 6"),
        (_script_raise, Format.TORCHSCRIPT, "x must be positive"),
        (lambda: TABLE @ TABLE, Format.EXPORTED, "mat1 and mat2 shapes cannot be multiplied"),
    ],
)
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_an_operator_that_refuses(call: Callable[[], object], format: Format, words: str) -> None:
    """Of a graph that has answered others it is the values; else nobody knows."""
    with pytest.raises((RuntimeError, Fail, torch.jit.Error)) as error:
        call()
    failed = _failed(error.value, format, runs=True)
    assert failed.bad_input and f"cannot use these values: {words}" in failed.detail
    assert not _failed(error.value, format, runs=False).bad_input
    assert not _failed(error.value, Format.FACTORY, runs=True).bad_input


@pytest.mark.parametrize("runs", [True, False])
def test_an_output_that_no_arena_holds_is_asked_for_by_values(runs: bool) -> None:
    failed = _failed(OutputTooLargeError("a tensor of 9 bytes"), Format.FACTORY, runs)
    assert failed.bad_input is runs and "a tensor of 9 bytes" in failed.detail


@pytest.mark.parametrize(
    "text",
    ["CUDA error: an illegal memory access", "[enforce fail] not enough memory: 1 GB"],
)
def test_what_no_values_cause(text: str) -> None:
    failed = _failed(RuntimeError(text), Format.TORCHSCRIPT, runs=True)
    assert not failed.bad_input and text in failed.detail


@pytest.mark.parametrize(
    "call",
    [lambda: [1, 2].pop(5), lambda: {}["no"], lambda: TABLE @ TABLE],
)
def test_a_fault_of_the_model_itself(call: Callable[[], object]) -> None:
    with pytest.raises((IndexError, KeyError, RuntimeError)) as error:
        call()
    assert not _failed(error.value, Format.FACTORY, runs=True).bad_input
