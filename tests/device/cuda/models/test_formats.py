"""Every torch format gives on the GPU what it gives on cores."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from interlace.core.errors import RepositoryError
from interlace.core.model import Format, Model
from interlace.core.tensor import Signature, TensorSpec
from interlace.device.cuda.models.loaded import LoadedModel
from interlace.device.cuda.models.opening import open_portable
from interlace.formats import open_model, open_torch
from interlace.formats.torch_values import named_values
from tests.device.cuda.models.rig import bench
from tests.formats.making import (
    Net,
    a_model,
    identity_onnx,
    layers_onnx,
    write_exported,
    write_factory,
    write_torchscript,
)
from tests.formats.test_huggingface import SMALL, saved, with_pooling

Inputs = dict[str, np.ndarray[Any, Any]]

X, MASK = TensorSpec("x", "FP32", (8,)), TensorSpec("mask", "FP32", (8,))
DESCRIBED = Signature((X, MASK), (), True, 8)
FACTORY = """
import torch
from tests.formats.making import Net

INPUTS = {"x": ("FP32", (8,)), "mask": ("FP32", (8,))}

def create_model():
    return Net()
"""
CONVOLUTIONS = """
from torch import nn

INPUTS = {"image": ("FP32", (3, 8, 8))}

def create_model():
    import torch
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
"""


TABLES = """
import torch
from torch import nn

INPUTS = {"ids": ("INT32", (4,)), "kind": ("INT64", (1,))}

class Tables(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(50, 4), nn.Embedding(3, 4)
        self.kinds = nn.EmbeddingBag(2, 4)

    def forward(self, ids, kind):
        places = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape).clamp(max=2)
        return self.words(ids.long()) + self.places(places) + self.kinds(input=kind).unsqueeze(1)

def create_model():
    torch.manual_seed(0)
    return Tables()
"""


def net_inputs() -> Inputs:
    random = np.random.default_rng(0)
    return {name: random.standard_normal((3, 8), np.float32) for name in ("x", "mask")}


def torchscript(root: Path, freeze: bool = False) -> Model:
    folder = write_torchscript(root / "net", Net(), freeze)
    return a_model(Format.TORCHSCRIPT, folder, DESCRIBED)


def exported(root: Path) -> Model:
    batch = torch.export.Dim("batch", min=1, max=16)
    folder = write_exported(
        root / "net",
        Net(),
        (torch.randn(2, 8),),
        kwargs={"mask": torch.ones(2, 8)},
        dynamic_shapes={"x": {0: batch}, "mask": {0: batch}},
    )
    return a_model(Format.EXPORTED, folder)


def bert(root: Path, *pooling: str) -> Model:
    from transformers import BertConfig

    folder = saved(root / "bert", "BertModel", BertConfig(**SMALL))
    if pooling:
        folder = with_pooling(folder, root / "pooled", *pooling)
    names = ("input_ids", "attention_mask", "token_type_ids")
    return a_model(Format.HUGGINGFACE, folder, sample=dict.fromkeys(names, (4,)))


def case(kind: str, root: Path) -> tuple[Model, Inputs]:
    match kind:
        case "torchscript":
            return torchscript(root), net_inputs()
        case "frozen torchscript":
            return torchscript(root, freeze=True), net_inputs()
        case "exported":
            return exported(root), net_inputs()
        case "factory":
            return a_model(Format.FACTORY, write_factory(root / "net", FACTORY)), net_inputs()
        case "convolutions":
            folder = write_factory(root / "conv", CONVOLUTIONS)
            image = np.random.default_rng(0).random((3, 3, 8, 8), np.float32)
            return a_model(Format.FACTORY, folder), {"image": image}
    tokens = np.array([[1, 2, 3, 4], [5, 6, 0, 0]])
    kinds = np.zeros_like(tokens)
    mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0]])
    pooling = kind.split()[1:]
    inputs = {"input_ids": tokens, "attention_mask": mask, "token_type_ids": kinds}
    return bert(root, *pooling), inputs


KINDS = ("torchscript", "frozen torchscript", "exported", "factory", "convolutions")
TEXTS = ("bert", "bert mean_tokens Normalize", "bert lasttoken", "bert cls_token")


@pytest.mark.parametrize("kind", [*KINDS, *TEXTS])
def test_the_same_as_on_cores(kind: str, tmp_path: Path) -> None:
    model, inputs = case(kind, tmp_path)
    wanted = open_model(model, 1, None).run(inputs)
    with bench() as gpu:
        lane = gpu.carve("a")
        loaded = gpu.load(model, lane, batches=(1, 4))
        assert not loaded.eager_because
        found = gpu.run(loaded, lane, inputs)
        assert found.keys() == wanted.keys()
        for name, array in wanted.items():
            assert found[name].dtype == array.dtype
            assert np.allclose(found[name], array, atol=1e-5), name


@pytest.mark.parametrize("kind", ["factory", *TEXTS, "bert weightedmean_tokens"])
def test_nothing_is_made_elsewhere_during_a_call(kind: str, tmp_path: Path) -> None:
    """A tensor made without saying where lies elsewhere here, and fails when it meets others."""
    model, inputs = case(kind, tmp_path)
    opened = open_torch(model)
    values = {name: torch.from_numpy(array) for name, array in inputs.items()}
    some = {name: value for name, value in values.items() if name in ("x", "mask", "input_ids")}
    for given in (values, some):
        with torch.no_grad(), torch.device("meta"):
            result = opened.call(given)
        named = named_values(result)
        assert {value.device.type for value in named.values()} == {"cpu"}


class Written(torch.nn.Module):
    """Its exported program names a processor and a type."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(8, dtype=torch.float32, device=x.device)
        return (x * steps).to(torch.float32)


def test_an_exported_program_goes_where_it_is_sent(tmp_path: Path) -> None:
    model = a_model(Format.EXPORTED, write_exported(tmp_path / "w", Written(), (torch.ones(2, 8),)))
    opened = open_torch(model)
    x = torch.rand(2, 8)
    with torch.no_grad():
        wanted = opened.call({"x": x})
        opened.retarget(torch.device("meta"), torch.float16)
        moved = opened.call({"x": x.to("meta", torch.float16)})
        assert (moved.device.type, moved.dtype) == ("meta", torch.float16)
        opened.retarget(torch.device("cpu"), None)  # and back, types too
        assert torch.equal(opened.call({"x": x}), wanted)


def test_what_a_request_leaves_out_means_what_it_means_on_cores(tmp_path: Path) -> None:
    model = bert(tmp_path)
    inputs = {"input_ids": np.array([[1, 2, 3, 4], [5, 6, 7, 8]])}
    wanted = open_model(model, 1, None).run(inputs)
    with bench() as gpu:
        lane = gpu.carve("a")
        loaded = gpu.load(model, lane, batches=(4,))
        launches = gpu.driver.calls["launch_graph"]
        found = gpu.run(loaded, lane, inputs)
        assert gpu.driver.calls["launch_graph"] == launches + 1  # the graph that has all inputs
        assert np.allclose(found["last_hidden_state"], wanted["last_hidden_state"], atol=1e-5)


def test_indices_beyond_the_vocabulary_read_no_other_memory(tmp_path: Path) -> None:
    model = bert(tmp_path)
    with bench() as gpu:
        lane = gpu.carve("a")
        loaded = gpu.load(model, lane, batches=(1,))
        ids = [np.array([[1, 2, 3, last]]) for last in (49, 50, 1 << 40)]
        found = [gpu.run(loaded, lane, {"input_ids": one}) for one in ids]
        assert np.allclose(found[0]["last_hidden_state"], found[1]["last_hidden_state"], atol=1e-5)
        assert np.allclose(found[0]["last_hidden_state"], found[2]["last_hidden_state"], atol=1e-5)
        with pytest.raises(ValueError, match="'input_ids' of length 65: at most 64"):
            gpu.run(loaded, lane, {"input_ids": np.ones((1, 65), np.int64)})


def test_indices_beyond_a_factorys_tables_read_no_other_memory(tmp_path: Path) -> None:
    model = a_model(Format.FACTORY, write_factory(tmp_path / "tables", TABLES))
    given = [((1, 2, 3, 49), 1), ((1, 2, 3, 50), 2), ((1, 2, 3, 2**31 - 1), 1 << 40)]
    below = [((0, 2, 3, 4), 0), ((-1, 2, 3, 4), -7)]

    def inputs(ids: tuple[int, ...], kind: int) -> Inputs:
        return {"ids": np.array([ids], np.int32), "kind": np.array([[kind]])}

    runner = open_model(model, 1, None)
    with pytest.raises(IndexError):
        runner.run(inputs(*given[1]))  # cores refuse them
    wanted = runner.run(inputs(*given[0]))
    with bench() as gpu:
        lane = gpu.carve("a")
        loaded = gpu.load(model, lane, batches=(1,))
        assert not loaded.eager_because
        for alike in (given, below):
            found = [gpu.run(loaded, lane, inputs(*one)) for one in alike]
            for one in found[1:]:
                assert all(np.allclose(one[name], found[0][name], atol=1e-5) for name in one)
        again = gpu.run(loaded, lane, inputs(*given[0]))
        assert all(np.allclose(again[name], wanted[name]) for name in wanted)


class Lookup(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(50, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.words(ids)
        return found * torch.ones(4, device=ids.device)


def test_indices_beyond_an_exported_table_read_no_other_memory(tmp_path: Path) -> None:
    folder = write_exported(
        tmp_path / "lookup",
        Lookup(),
        (torch.ones(2, 4, dtype=torch.int64),),
        dynamic_shapes={"ids": {0: torch.export.Dim("batch", min=1, max=16)}},
    )
    model = a_model(Format.EXPORTED, folder)
    runner = open_model(model, 1, None)
    with pytest.raises(IndexError):
        runner.run({"ids": np.array([[1, 2, 3, 50]])})
    (wanted,) = runner.run({"ids": np.array([[1, 2, 0, 49]])}).values()
    with bench() as gpu:
        lane = gpu.carve("a")
        loaded = gpu.load(model, lane, batches=(1,))
        (found,) = gpu.run(loaded, lane, {"ids": np.array([[1, 2, -9, 1 << 40]])}).values()
        assert np.allclose(found, wanted)


def test_texts_without_numbers_are_refused(tmp_path: Path) -> None:
    text = Signature((TensorSpec("x", "BYTES", (1,)),), (TensorSpec("y", "FP32", (1,)),), True, 4)
    model = a_model(Format.FACTORY, write_factory(tmp_path / "net", FACTORY), text)
    with bench() as gpu, pytest.raises(RepositoryError, match="'x' of type BYTES"):
        LoadedModel(gpu.context, model)


def test_onnx_runs_eagerly_on_tensors_where_they_lie(tmp_path: Path) -> None:
    model = a_model(Format.ONNX, layers_onnx(tmp_path / "layers", (16, 8, 4)))
    inputs = {"x": np.random.default_rng(0).standard_normal((3, 16), np.float32)}
    wanted = open_model(model, 1, None).run(inputs)
    with bench() as gpu:
        lane = gpu.carve("a")
        loaded = gpu.load(model, lane)
        assert loaded.eager_because == "onnxruntime launches its kernels itself"
        found = gpu.run(loaded, lane, inputs)
        assert found.keys() == wanted.keys()
        assert all(np.allclose(found[name], wanted[name], atol=1e-6) for name in wanted)


def test_onnx_on_a_gpu_says_what_to_install(tmp_path: Path) -> None:
    model = a_model(Format.ONNX, layers_onnx(tmp_path / "layers", (16, 8)))
    with pytest.raises(RepositoryError, match="pip install onnxruntime-gpu"):
        open_portable(model, "cuda:0")


def test_onnx_is_not_for_torch(tmp_path: Path) -> None:
    import onnx

    folder = identity_onnx(tmp_path / "o", onnx.TensorProto.FLOAT, "N", 4)
    with pytest.raises(RepositoryError, match="an ONNX model"):
        open_torch(a_model(Format.ONNX, folder))
