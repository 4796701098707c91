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
    assert silent.layers[0].flops == CONV_FLOPS * 4  # 64 by 64


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


def test_what_a_model_does_after_an_exception_is_named() -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ x if x.sum().item() else x

    work = counted(nn.Sequential(nn.Linear(4, 4), Broken()), 4, 4)
    assert work.flops == 2 * 4 * 4 * 4
    assert work.unread[0].startswith("Broken and what follows")
