"""The models of the comparisons: what a request carries, the SLO, and a runner for the peers.

Imported by peers in their own environments, so it needs numpy only, and what a model needs. Three
are alike for every server: echo and img answer their input (64 and 602,112 bytes), cnn is a small
residual network. The others are the six example models.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import importlib.util
import json
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
#: Arrays of a batch in the order of ``Sort.inputs``, to arrays in the order of ``Sort.outputs``.
Run = Callable[[Sequence[Array]], list[Array]]
HERE = Path(__file__).resolve().parent
EXAMPLES = HERE / "../../models"


class Tensor(NamedTuple):
    """Name, v2 datatype, and dims of one row as the benchmark sends them."""

    name: str
    datatype: str
    dims: tuple[int, ...]


class Sort(NamedTuple):
    """One model: how it is opened ("same", "onnx", "bert" or "factory"), and its tensors.

    ``folder`` is that of its repository, from the one this file lies in.
    """

    name: str
    kind: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    max_batch: int
    folder: str = "../../models"

    @property
    def path(self) -> Path:
        return HERE / self.folder / self.name


TOKENS = ("input_ids", "attention_mask", "token_type_ids")
MIX = (
    Sort(
        "embedder", "bert", tuple(Tensor(name, "INT64", (32,)) for name in TOKENS),
        (Tensor("sentence_embedding", "FP32", (384,)),), 32,
    ),
    Sort(
        "detector", "onnx", (Tensor("x", "FP32", (3, 320, 640)),),
        (Tensor("sigmoid_0.tmp_0", "FP32", (1, 320, 640)),), 4,
    ),
    Sort(
        "direction", "onnx", (Tensor("x", "FP32", (3, 48, 192)),),
        (Tensor("save_infer_model/scale_0.tmp_1", "FP32", (2,)),), 16,
    ),
    Sort(
        "recogniser", "onnx", (Tensor("x", "FP32", (3, 48, 320)),),
        (Tensor("softmax_11.tmp_0", "FP32", (40, 6625)),), 8,
    ),
    Sort(
        "cnn_small", "factory", (Tensor("image", "FP32", (3, 64, 64)),),
        (Tensor("logits", "FP32", (1000,)),), 16,
    ),
    Sort(
        "cnn_large", "factory", (Tensor("image", "FP32", (3, 128, 128)),),
        (Tensor("logits", "FP32", (1000,)),), 8,
    ),
)  # fmt: skip


def _alike(name: str, kind: str, given: tuple[int, ...], made: tuple[int, ...]) -> Sort:
    return Sort(
        name, kind, (Tensor("INPUT", "FP32", given),), (Tensor("OUTPUT", "FP32", made),), 16, "repo"
    )


ALIKE = (
    _alike("echo", "same", (16,), (16,)),
    _alike("cnn", "factory", (3, 64, 64), (100,)),
    _alike("img", "same", (3, 224, 224), (3, 224, 224)),
)
BY_NAME = {sort.name: sort for sort in (*MIX, *ALIKE)}
DTYPES = {"FP32": np.float32, "INT64": np.int64}


def slo_ms(name: str) -> float:
    """The SLO that the model's own folder states."""
    return float(tomllib.loads((BY_NAME[name].path / "interlace.toml").read_text())["slo_ms"])


def sample(name: str) -> list[Array]:
    """Inputs of a request of one row: random pictures, or token ids of a full sentence."""
    sort = BY_NAME[name]
    rng = np.random.default_rng(5)
    if sort.kind == "bert":
        ids = rng.integers(1000, 20000, (1, *sort.inputs[0].dims))
        return [ids, np.ones_like(ids), np.zeros_like(ids)]
    return [rng.standard_normal((1, *t.dims), dtype=np.float32) for t in sort.inputs]


def load(name: str, threads: int = 1) -> Run:
    """Open a model on so many threads, warmed up with one row."""
    sort = BY_NAME[name]
    openers = {"same": _same, "onnx": _onnx, "bert": _bert, "factory": _factory}
    run = openers[sort.kind](sort, threads)
    run(sample(name))
    return run


def _same(sort: Sort, threads: int) -> Run:
    return list


def _onnx(sort: Sort, threads: int) -> Run:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    path = str(sort.path / "1" / "model.onnx")
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [tensor.name for tensor in sort.outputs]

    def run(arrays: Sequence[Array]) -> list[Array]:
        given = {t.name: a for t, a in zip(sort.inputs, arrays, strict=True)}
        answers: list[Array] = session.run(names, given)
        return answers

    return run


def _bert(sort: Sort, threads: int) -> Run:
    import torch
    import transformers

    torch.set_num_threads(threads)
    folder = sort.path / "1"
    net = transformers.AutoModel.from_pretrained(str(folder), local_files_only=True).eval()
    normalised = any(
        module["type"].endswith("Normalize")
        for module in json.loads((folder / "modules.json").read_text())
    )

    def run(arrays: Sequence[Array]) -> list[Array]:
        with torch.inference_mode():
            given = dict(zip(TOKENS, (torch.from_numpy(a) for a in arrays), strict=True))
            tokens = net(**given).last_hidden_state
            mask = given["attention_mask"].unsqueeze(-1).to(tokens.dtype)
            mean = (tokens * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
            if normalised:
                mean = torch.nn.functional.normalize(mean, p=2, dim=1)
            return [mean.numpy()]

    return run


def _factory(sort: Sort, threads: int) -> Run:
    import torch

    torch.set_num_threads(threads)
    path = sort.path / "1" / "model.py"
    spec = importlib.util.spec_from_file_location(f"bench_{sort.name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    net = module.create_model().eval()

    def run(arrays: Sequence[Array]) -> list[Array]:
        with torch.inference_mode():
            return [net(torch.from_numpy(np.ascontiguousarray(arrays[0]))).numpy()]

    return run
