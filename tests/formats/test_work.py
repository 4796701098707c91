"""Work counted from graphs: FLOPs, values moved, what is fused, what is named unread."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from interlace.core.errors import RepositoryError
from interlace.core.work import ModelWork
from interlace.formats import onnx_work, torch_work

pytestmark = pytest.mark.process


def weight(name: str, *dims: int) -> onnx.TensorProto:
    values = [0.0] * int(torch.Size(dims).numel())
    return helper.make_tensor(name, TensorProto.FLOAT, dims, values)


def graph(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    weights: Sequence[onnx.TensorProto],
    dims: Sequence[int | str],
) -> Path:
    info = helper.make_tensor_value_info
    made = helper.make_graph(
        list(nodes),
        "g",
        [info("x", TensorProto.FLOAT, dims)],
        [info("y", TensorProto.FLOAT, None)],
        list(weights),
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ours", 1)]
    onnx.save(helper.make_model(made, opset_imports=opsets), str(path))
    return path


def convolution(path: Path, dims: Sequence[int | str]) -> Path:
    """A convolution with a ReLU, then a classifier behind a computed reshape."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Shape", ["p"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["rows"], axis=0),
        helper.make_node("Concat", ["rows", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["p", "shape"], ["f"]),
        helper.make_node("Gemm", ["f", "v", "b"], ["y"]),
    ]
    zero = numpy_helper.from_array(torch.tensor([0]).numpy(), "zero")
    rest = numpy_helper.from_array(torch.tensor([-1]).numpy(), "rest")
    weights = [weight("w", 8, 3, 3, 3), weight("v", 8, 10), weight("b", 10), zero, rest]
    return graph(path, nodes, weights, dims)


CONV_FLOPS = 2 * 8 * 32 * 32 * 3 * 9


def test_an_onnx_convolution_is_counted_exactly_and_its_relu_runs_inside(tmp_path: Path) -> None:
    work = onnx_work.count(convolution(tmp_path / "m.onnx", ["rows", 3, 32, 32]), {})
    conv, pool, product = work.layers
    assert (conv.kind, pool.kind, product.kind) == ("conv", "pool", "matmul")
    assert conv.flops == CONV_FLOPS
    assert (conv.m, conv.n, conv.k) == (32 * 32, 8, 27)
    assert (conv.weights, conv.read, conv.written) == (8 * 27, 3 * 32 * 32, 8 * 32 * 32)
    assert product.flops == 2 * 8 * 10
    assert not work.unread


def test_free_dims_take_the_sizes_that_are_said(tmp_path: Path) -> None:
    path = convolution(tmp_path / "m.onnx", ["rows", 3, "height", "width"])
    said = onnx_work.count(path, {"x": [3, 16, 16]})
    assert said.layers[0].flops == CONV_FLOPS / 4
    silent = onnx_work.count(path, {})
    assert silent.layers[0].flops == CONV_FLOPS * 49  # an image of 224 by 224
    assert (said.assumed, silent.assumed) == ((), ("x 1x3x224x224",))


def test_an_operator_that_is_not_known_is_named_and_the_rest_counted(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Strange", ["c"], ["s"], name="odd", domain="ours"),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    path = graph(tmp_path / "m.onnx", nodes, [weight("w", 8, 3, 1, 1)], [1, 3, 4, 4])
    work = onnx_work.count(path, {})
    assert work.flops == 2 * 8 * 16 * 3
    assert work.unread[0].startswith("odd (Strange)")


INT8 = helper.make_tensor("q", TensorProto.INT8, [16, 16], [0] * 256)
SCALE = helper.make_tensor("s", TensorProto.FLOAT, [], [0.1])
FEW = helper.make_tensor("n", TensorProto.INT64, [], [5])
YES = helper.make_tensor("t", TensorProto.BOOL, [], [True])
BODY = helper.make_graph(
    [helper.make_node("MatMul", ["h", "v"], ["o"]), helper.make_node("Identity", ["c"], ["d"])],
    "body",
    [helper.make_tensor_value_info(name, of, dims) for name, of, dims in (
        ("i", TensorProto.INT64, []), ("c", TensorProto.BOOL, []), ("h", TensorProto.FLOAT, None))],
    [helper.make_tensor_value_info("d", TensorProto.BOOL, []),
     helper.make_tensor_value_info("o", TensorProto.FLOAT, None)],
)  # fmt: skip
BRANCHES = {
    f"{name}_branch": helper.make_graph(
        [helper.make_node(operator, inputs, [name])],
        name,
        [],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)],
    )
    for name, operator, inputs in (("then", "MatMul", ["x", "v"]), ("else", "Relu", ["x"]))
}
ONE_PRODUCT = 2 * 4 * 16 * 16


@pytest.mark.parametrize(
    ("nodes", "flops", "unread"),
    [
        ([("Loop", ["n", "t", "x"], {"body": BODY})], 5 * ONE_PRODUCT, 0),
        ([("Loop", ["", "t", "x"], {"body": BODY})], ONE_PRODUCT, 1),
        ([("ReduceMax", ["x"], {"keepdims": 0}), ("Cast", ["y"], {"to": 9}),
          ("If", ["y"], BRANCHES)], ONE_PRODUCT, 0),
        ([("Einsum", ["x", "v"], {"equation": "abc,cd->abd"})], ONE_PRODUCT, 0),
        ([("DequantizeLinear", ["q", "s"], {}), ("MatMul", ["x", "y"], {})], ONE_PRODUCT, 0),
        ([("QLinearMatMul", ["x", "s", "n", "q", "s", "n", "s", "n"], {})], ONE_PRODUCT, 0),
        ([("MultiHeadAttention", ["x", "x", "x"], {"num_heads": 2, "domain": "com.microsoft"})],
         4 * 4 * 4 * 16, 0),
        ([("Strange", ["x"], {"domain": "ours"}), ("MatMul", ["y", "v"], {})], ONE_PRODUCT, 1),
    ],
)  # fmt: skip
def test_blocks_and_rare_products_are_counted(
    tmp_path: Path, nodes: list[tuple[str, list[str], dict[str, object]]], flops: int, unread: int
) -> None:
    last, made = "x", []
    for place, (operator, inputs, attributes) in enumerate(nodes):
        names = [last if name == "y" else name for name in inputs]
        last = "y" if place == len(nodes) - 1 else f"y{place}"
        made.append(helper.make_node(operator, names, [last], **attributes))
    weights = [weight("v", 16, 16), INT8, SCALE, FEW, YES]
    work = onnx_work.count(graph(tmp_path / "m.onnx", made, weights, ["rows", 4, 16]), {})
    assert (work.flops, len(work.unread)) == (flops, unread)


def test_shapes_that_a_graph_computes_are_known(tmp_path: Path) -> None:
    """As exporters write ``expand``: a class token of as many rows as the input has."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["rows"]),
        helper.make_node("Concat", ["rows", "rest"], ["wanted"], axis=0),
        helper.make_node("ConstantOfShape", ["three"], ["ones"]),
        helper.make_node("Equal", ["wanted", "ones"], ["same"]),
        helper.make_node("Where", ["same", "ones", "wanted"], ["to"]),
        helper.make_node("Expand", ["token", "to"], ["many"]),
        helper.make_node("Concat", ["many", "x"], ["all"], axis=1),
        helper.make_node("MatMul", ["all", "v"], ["y"]),
    ]
    numbers = {"zero": [0], "rest": [1, 16], "three": [3]}
    weights = [numpy_helper.from_array(torch.tensor(v).numpy(), k) for k, v in numbers.items()]
    weights += [weight("v", 16, 16), weight("token", 1, 1, 16)]
    work = onnx_work.count(graph(tmp_path / "m.onnx", nodes, weights, ["rows", 4, 16]), {})
    assert (work.flops, work.unread) == (2 * 5 * 16 * 16, ())


def test_weights_of_two_bytes_and_tables_are_noticed(tmp_path: Path) -> None:
    table = numpy_helper.from_array(torch.zeros(1000, 16, dtype=torch.half).numpy(), "w")
    nodes = [
        helper.make_node("Cast", ["x"], ["at"], to=7),
        helper.make_node("Gather", ["w", "at"], ["y"]),
    ]
    work = onnx_work.count(graph(tmp_path / "m.onnx", nodes, [table], ["rows", 4]), {})
    assert (work.half, work.weights, work.flops) == (True, 16000, 0)


def test_a_file_that_is_no_graph_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(RepositoryError, match="an ONNX graph"):
        onnx_work.count(path, {})


def counted(module: nn.Module, *dims: int) -> ModelWork:
    values = torch.empty(*dims, device="meta")
    module = module.to("meta").eval()
    return torch_work.count(lambda: module(values), module.parameters())


def test_torch_and_onnx_agree_on_a_convolution(tmp_path: Path) -> None:
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    )
    ours = counted(module, 1, 3, 32, 32)
    theirs = onnx_work.count(convolution(tmp_path / "m.onnx", ["rows", 3, 32, 32]), {})
    assert ours.flops == theirs.flops
    first, other = ours.layers[0], theirs.layers[0]
    assert (first.kind, first.weights, first.m, first.n, first.k) == (
        (other.kind, other.weights, other.m, other.n, other.k)
    )


@pytest.mark.parametrize(("groups", "kind"), [(1, "conv"), (4, "grouped"), (16, "depthwise")])
def test_convolutions_are_told_apart_by_their_groups(groups: int, kind: str) -> None:
    work = counted(nn.Conv2d(16, 16, 3, groups=groups, bias=False), 1, 16, 8, 8)
    (layer,) = work.layers
    assert (layer.kind, layer.flops) == (kind, 2 * 16 * 36 * 9 * 16 / groups)


def test_attention_is_one_kernel_that_writes_no_scores() -> None:
    class Heads(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.scaled_dot_product_attention(x, x, x)

    (layer,) = counted(Heads(), 1, 4, 50, 32).layers
    assert layer.kind == "attention"
    assert layer.flops == 2 * 2 * 4 * 50 * 50 * 32
    assert layer.written == 4 * 50 * 32


def test_attention_and_lstm_of_a_program_are_counted() -> None:
    """Exported programs call operators; torch functions are not seen."""
    lstm = nn.LSTM(8, 16, batch_first=True).eval()
    values, heads = torch.zeros(1, 5, 8), torch.zeros(1, 2, 5, 8)
    work = torch_work.count(lambda: lstm(values), lstm.parameters())
    assert work.flops == 5 * 2 * 64 * (8 + 16)
    attend = torch.ops.aten.scaled_dot_product_attention
    assert torch_work.count(lambda: attend(heads, heads, heads), []).flops == 4 * 2 * 25 * 8


def test_what_a_model_does_after_an_exception_is_named() -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ x if x.sum().item() else x

    work = counted(nn.Sequential(nn.Linear(4, 4), Broken()), 4, 4)
    assert work.flops == 2 * 4 * 4 * 4
    assert work.unread[0].startswith("Broken and what follows")
