"""ONNX models: what they say of themselves, every datatype, one copy of the weights."""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from interlace.core.errors import RepositoryError, ServeError
from interlace.core.model import Format
from interlace.core.tensor import Signature, TensorSpec
from interlace.formats import count_work, open_model
from interlace.formats.arrays import NUMPY_TYPES
from tests.formats.making import F32, a_model, identity_onnx, layers_onnx, served, value, write_onnx

KINDS = {
    "BOOL": onnx.TensorProto.BOOL,
    "UINT8": onnx.TensorProto.UINT8,
    "UINT16": onnx.TensorProto.UINT16,
    "UINT32": onnx.TensorProto.UINT32,
    "UINT64": onnx.TensorProto.UINT64,
    "INT8": onnx.TensorProto.INT8,
    "INT16": onnx.TensorProto.INT16,
    "INT32": onnx.TensorProto.INT32,
    "INT64": onnx.TensorProto.INT64,
    "FP16": onnx.TensorProto.FLOAT16,
    "BF16": onnx.TensorProto.BFLOAT16,
    "FP32": onnx.TensorProto.FLOAT,
    "FP64": onnx.TensorProto.DOUBLE,
}


@pytest.mark.parametrize("datatype", KINDS)
def test_every_datatype_passes_unchanged(tmp_path: Path, datatype: str) -> None:
    folder = identity_onnx(tmp_path / "id", KINDS[datatype], "N", 3)
    runner = open_model(a_model(Format.ONNX, folder), 1, None)
    assert runner.signature.inputs == (TensorSpec("x", datatype, (3,)),)
    assert runner.signature.outputs == (TensorSpec("y", datatype, (3,)),)
    assert runner.signature.batched
    bits = np.arange(6, dtype=np.uint8).reshape(2, 3) % 2
    array = bits.astype(NUMPY_TYPES[datatype])
    array.flags.writeable = False  # inputs lie in memory that a worker may only read
    found = runner.run({"x": array})["y"]
    assert found.dtype == array.dtype
    assert np.array_equal(found, array)


def test_clients_have_the_dims_of_the_description_and_the_graph_its_own(tmp_path: Path) -> None:
    """Scalars and Triton's ``reshape``."""
    nodes = [
        helper.make_node("Mul", ["x", "s"], ["y"]),
        helper.make_node("ReduceSum", ["y"], ["sum"], keepdims=0),
    ]
    ends = (
        [value("x", F32, 1, 2, 3), value("s", F32)],
        [value("y", F32, 1, 2, 3), value("sum", F32)],
    )
    folder = write_onnx(tmp_path / "m", nodes, *ends)
    inputs = (
        TensorSpec("x", "FP32", (6,), False, (1, 2, 3)),
        TensorSpec("s", "FP32", (1,), False, ()),
    )
    outputs = (
        TensorSpec("y", "FP32", (3, 2), False, (1, 2, 3)),
        TensorSpec("sum", "FP32", (1,), False, ()),
    )
    model = a_model(Format.ONNX, folder, Signature(inputs, outputs, False, 1))
    runner = open_model(model, 1, None)
    x = np.arange(6, dtype=np.float32)
    found = runner.run({"x": x, "s": np.array([2], np.float32)})
    assert np.array_equal(found["y"], 2 * x.reshape(3, 2))
    assert np.array_equal(found["sum"], np.array([30], np.float32))
    assert found["sum"].shape == (1,)
    assert not count_work(model).unread


def test_a_folder_may_hold_the_graph_and_its_external_data(tmp_path: Path) -> None:
    made = layers_onnx(tmp_path / "made", (64, 128, 8))
    inner = tmp_path / "net" / "model.onnx"
    inner.mkdir(parents=True)
    graph = onnx.load(made / "model.onnx")
    onnx.save(graph, inner / "model.onnx", save_as_external_data=True, location="weights.bin")
    assert (inner / "weights.bin").stat().st_size >= 64 * 128 * 4
    x = {"x": np.random.default_rng(0).standard_normal((2, 64), np.float32)}
    wanted = open_model(a_model(Format.ONNX, made), 1, None).run(x)["r1"]
    model = a_model(Format.ONNX, tmp_path / "net", file="model.onnx/model.onnx")
    runner = open_model(model, 1, str(tmp_path / "weights"))
    assert runner.shared_bytes >= 64 * 128 * 4
    assert np.allclose(runner.run(x)["r1"], wanted, atol=1e-5)


def test_dims_keep_their_names(tmp_path: Path) -> None:
    ends = [value(name, F32, "N", "sequence", 4) for name in "xm"], [value("y", F32, "N", 1, 4)]
    folder = write_onnx(tmp_path / "m", [helper.make_node("Add", ["x", "m"], ["y"])], *ends)
    said = open_model(a_model(Format.ONNX, folder), 1, None).signature
    assert said.inputs[0] == TensorSpec("x", "FP32", (-1, 4), free_names=("sequence",))


def test_an_initializer_that_is_an_input_can_be_sent_or_left_out(tmp_path: Path) -> None:
    ends = [value("x", F32, "N", 2), value("w", F32, 2)], [value("y", F32, "N", 2)]
    constants = {"w": np.array([10, 20], np.float32)}
    node = helper.make_node("Add", ["x", "w"], ["y"])
    folder = write_onnx(tmp_path / "m", [node], *ends, constants)
    said = open_model(a_model(Format.ONNX, folder), 1, None).signature
    w = TensorSpec("w", "FP32", (2,), optional=True)
    assert (said.batched, said.inputs) == (True, (TensorSpec("x", "FP32", (2,)),))
    assert said.overridable == (w,)
    unbatched = tuple(TensorSpec(name, "FP32", (-1, 2)) for name in "xy")
    model = a_model(Format.ONNX, folder, Signature((unbatched[0], w), unbatched[1:], False, 1))
    runner = open_model(model, 1, str(tmp_path))
    x = np.zeros((3, 2), np.float32)
    assert runner.run({"x": x})["y"].tolist() == [[10, 20]] * 3
    assert runner.run({"x": x, "w": np.ones(2, np.float32)})["y"].tolist() == [[1, 1]] * 3


def test_strings_are_bytes_outside_and_text_inside(tmp_path: Path) -> None:
    folder = identity_onnx(tmp_path / "id", onnx.TensorProto.STRING, "N", 2)
    runner = open_model(a_model(Format.ONNX, folder), 1, None)
    array = np.array([[b"a", "é\0z".encode()]], dtype=object)
    assert np.array_equal(runner.run({"x": array})["y"], array)
    with pytest.raises(ServeError, match="input 'x': onnxruntime takes UTF-8 strings only"):
        runner.run({"x": np.array([[b"\xff", b""]], dtype=object)})


def test_a_fixed_first_dim_means_no_batches(tmp_path: Path) -> None:
    folder = identity_onnx(tmp_path / "id", F32, 1, 3)
    signature = open_model(a_model(Format.ONNX, folder), 1, None).signature
    assert not signature.batched
    assert signature.inputs == (TensorSpec("x", "FP32", (1, 3)),)


def test_only_served_outputs_are_computed(tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", ["x"], [name]) for name in ("a", "b")]
    outputs = [value(name, F32, "N", 2) for name in ("a", "b")]
    folder = write_onnx(tmp_path / "two", nodes, [value("x", F32, "N", 2)], outputs)
    signature = served([TensorSpec("x", "FP32", (2,))], [TensorSpec("b", "FP32", (2,))])
    runner = open_model(a_model(Format.ONNX, folder, signature), 1, None)
    assert list(runner.run({"x": np.ones((3, 2), np.float32)})) == ["b"]
    assert {spec.name for spec in runner.signature.outputs} == {"a", "b"}


def test_outputs_that_are_no_tensors_are_passed_over_and_named(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Identity", ["x"], ["y"]),
        helper.make_node("SequenceConstruct", ["x"], ["s"]),
    ]
    sequence = helper.make_tensor_sequence_value_info("s", F32, ["N", 2])
    outputs = [value("y", F32, "N", 2), sequence]
    folder = write_onnx(tmp_path / "seq", nodes, [value("x", F32, "N", 2)], outputs)
    runner = open_model(a_model(Format.ONNX, folder), 1, None)
    assert [spec.name for spec in runner.signature.outputs] == ["y"]
    assert "output 's' of type seq(tensor(float)) is not served" in runner.warnings[0]


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(
        RepositoryError, match=r"broken: found a model that does not load"
    ) as caught:
        open_model(a_model(Format.ONNX, folder), 1, str(tmp_path / "weights"))
    assert caught.value.expected == "a working onnx model"


def test_a_graph_without_weights_has_nothing_to_share(tmp_path: Path) -> None:
    folder = identity_onnx(tmp_path / "id", F32, "N", 2)
    runner = open_model(a_model(Format.ONNX, folder), 1, str(tmp_path / "weights"))
    assert runner.shared_bytes == 0
    assert runner.warnings == ()


def test_threads_are_those_asked_for(tmp_path: Path) -> None:
    folder = layers_onnx(tmp_path / "net", (64, 64))
    before = set(os.listdir("/proc/self/task"))  # some of which may end meanwhile
    runner = open_model(a_model(Format.ONNX, folder), 3, None)
    runner.run({"x": np.ones((1, 64), np.float32)})
    assert len(set(os.listdir("/proc/self/task")) - before) == 2
    runner.close()
