"""The layout of ONNX weights: every piece aligned, every offset followed, subgraphs too."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from interlace.formats.onnx_layout import ALIGNMENT_BYTES, lay_out


def external(name: str, offset: int, length: int, **more: str) -> onnx.TensorProto:
    tensor = onnx.TensorProto(name=name, data_type=onnx.TensorProto.UINT8, dims=[length])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entries = {"location": "weights.bin", "offset": str(offset), "length": str(length), **more}
    for key, text in entries.items():
        tensor.external_data.add(key=key, value=text)
    return tensor


def write(folder: Path, graph: onnx.GraphProto, content: bytes) -> tuple[Path, Path]:
    files = folder / "model.onnx", folder / "weights.bin"
    onnx.save(helper.make_model(graph), files[0])
    files[1].write_bytes(content)
    return files


def entries(tensor: onnx.TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


@given(st.lists(st.integers(1, 300), min_size=1, max_size=8))
@settings(max_examples=25, deadline=None)
def test_pieces_keep_their_bytes_on_aligned_places(lengths: list[int]) -> None:
    import tempfile

    content = np.random.default_rng(0).bytes(sum(lengths))
    tensors, offset = [], 0
    for place, length in enumerate(lengths):
        tensors.append(external(f"t{place}", offset, length))
        offset += length
    with tempfile.TemporaryDirectory() as folder:
        graph = helper.make_graph([], "g", [], [], tensors)
        model_file, weights = write(Path(folder), graph, content)
        lay_out(model_file, weights)
        moved = onnx.load(model_file, load_external_data=False)
        stored = weights.read_bytes()
    for before, after in zip(tensors, moved.graph.initializer, strict=True):
        old, new = int(entries(before)["offset"]), int(entries(after)["offset"])
        length = int(entries(before)["length"])
        assert new % ALIGNMENT_BYTES == 0
        assert stored[new : new + length] == content[old : old + length]
        assert entries(after)["location"] == "weights.bin"


def test_packed_blobs_and_subgraphs_are_followed(tmp_path: Path) -> None:
    content = bytes(range(200))
    packed = external("w", 1, 10, prepacked_0="MatMul+77|11;20;0|31;9;0")
    inner = helper.make_graph([], "inner", [], [], [external("v", 40, 5)])
    node = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    other = onnx.TensorProto(name="small", data_type=onnx.TensorProto.FLOAT, dims=[1])
    other.float_data.append(1.5)
    graph = helper.make_graph([node], "g", [], [], [packed, other])
    model_file, weights = write(tmp_path, graph, content)
    lay_out(model_file, weights)
    moved = onnx.load(model_file, load_external_data=False).graph
    stored = weights.read_bytes()
    kernel, first, second = entries(moved.initializer[0])["prepacked_0"].split("|")
    assert kernel == "MatMul+77"
    for blob, (old, length) in ((first, (11, 20)), (second, (31, 9))):
        new = int(blob.split(";")[0])
        assert new % ALIGNMENT_BYTES == 0
        assert stored[new : new + length] == content[old : old + length]
    for attribute in moved.node[0].attribute:
        place = int(entries(attribute.g.initializer[0])["offset"])
        assert stored[place : place + 5] == content[40:45]
    assert moved.initializer[1] == other


@pytest.mark.parametrize(
    ("more", "length", "message"),
    [
        ({"prepacked_0": "something new"}, 10, "packed weights described as 'something new'"),
        ({}, 500, "the weights end 300 bytes early"),
    ],
)
def test_what_is_not_understood_is_an_error(
    tmp_path: Path, more: dict[str, Any], length: int, message: str
) -> None:
    graph = helper.make_graph([], "g", [], [], [external("w", 0, length, **more)])
    files = write(tmp_path, graph, bytes(200))
    with pytest.raises(ValueError, match=message):
        lay_out(*files)
