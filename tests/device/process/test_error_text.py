"""What libraries say of values that no model can use, and of faults that are the model's own."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from interlace.device.process.error_text import values_error

TABLE = torch.zeros(10, 4)
BEYOND = torch.tensor([[1, 50]])


class Lookup(torch.nn.Module):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(ids, TABLE)


def _scripted() -> object:
    return torch.jit.trace(Lookup(), torch.zeros(1, 2, dtype=torch.int64))(BEYOND)


def _onnx() -> object:
    weights = numpy_helper.from_array(np.zeros((10, 4), np.float32), "w")
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", 2])
    found = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2, 4])
    node = helper.make_node("Gather", ["w", "ids"], ["y"])
    graph = helper.make_graph([node], "g", [ids], [found], [weights])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"ids": BEYOND.numpy()})


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
    assert "out of" in values_error(error.value)
    assert "\n" not in values_error(error.value)


@pytest.mark.parametrize(
    "call",
    [lambda: [1, 2].pop(5), lambda: {}["no"], lambda: TABLE @ TABLE],
)
def test_a_fault_of_the_model_itself(call: Callable[[], object]) -> None:
    with pytest.raises((IndexError, KeyError, RuntimeError)) as error:
        call()
    assert values_error(error.value) == ""
