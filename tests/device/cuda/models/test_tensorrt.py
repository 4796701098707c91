"""TensorRT plans, on a stand-in for its library: what is called, compared and refused."""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from interlace.core.errors import RepositoryError
from interlace.core.model import Format, Model
from interlace.core.tensor import Signature, TensorSpec
from interlace.device.cuda.models.loaded import LoadedModel
from interlace.device.cuda.models.opening import open_portable
from interlace.formats import open_model
from interlace.repository.folder import find_model
from interlace.repository.model_config import ModelConfig
from tests.device.cuda.models.rig import bench
from tests.formats.making import a_model

DESCRIBED = Signature(
    (TensorSpec("x", "FP32", (3,)),), (TensorSpec("y", "FP32", (3,)),), True, max_batch=8
)
#: y = x + 1, for at most 16 rows.
PLAN = {"x": ["FLOAT", [-1, 3], 16], "y": ["FLOAT", [-1, 3], 0]}


class _Context:
    """Adds one, where it is told to, when it is told to."""

    def __init__(self) -> None:
        self._rows = 0
        self._at: dict[str, int] = {}

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self._rows = shape[0]
        return name == "x" and shape[1:] == (3,) and shape[0] <= 16

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return (self._rows, 3)

    def set_tensor_address(self, name: str, pointer: int) -> bool:
        self._at[name] = pointer
        return True

    def execute_async_v3(self, stream: int) -> bool:
        kind = ctypes.c_float * (3 * self._rows)
        x, y = (kind.from_address(self._at[name]) for name in ("x", "y"))
        for at, value in enumerate(x):
            y[at] = value + 1.0
        return True


class _Engine:
    def __init__(self, tensors: dict[str, Any]) -> None:
        self._tensors = tensors
        self.num_io_tensors = len(tensors)

    def get_tensor_name(self, at: int) -> str:
        return list(self._tensors)[at]

    def get_tensor_shape(self, name: str) -> list[int]:
        shape: list[int] = self._tensors[name][1]
        return shape

    def get_tensor_dtype(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(name=self._tensors[name][0])

    def get_tensor_mode(self, name: str) -> str:
        return "in" if self._tensors[name][2] else "out"

    def get_tensor_profile_shape(self, name: str, profile: int) -> list[tuple[int, ...]]:
        _, (_, *dims), rows = self._tensors[name]
        return [(1, *dims), (1, *dims), (rows, *dims)]

    def create_execution_context(self) -> _Context:
        return _Context()


class _Runtime:
    def __init__(self, logger: object) -> None: ...

    def deserialize_cuda_engine(self, plan: bytes) -> _Engine | None:
        return _Engine(json.loads(plan[4:])) if plan.startswith(b"ftrt") else None


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = SimpleNamespace(
        Logger=type("Logger", (), {"ERROR": 1, "__init__": lambda self, level: None}),
        Runtime=_Runtime,
        TensorIOMode=SimpleNamespace(INPUT="in"),
        __spec__=object(),
        __version__="10.0",
    )
    monkeypatch.setitem(sys.modules, "tensorrt", made)
    monkeypatch.delitem(sys.modules, "interlace.device.cuda.models.tensorrt_call", raising=False)


def planned(folder: Path, tensors: dict[str, Any], described: Signature = DESCRIBED) -> Model:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.plan").write_text(
        f"ftrt{json.dumps(tensors)}" if tensors else "of another GPU"
    )
    return a_model(Format.TENSORRT, folder, described)


@pytest.mark.usefixtures("library")
def test_a_plan_runs_on_tensors_where_they_lie(tmp_path: Path) -> None:
    model = planned(tmp_path / "plan", PLAN)
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    with bench() as gpu:
        lane = gpu.carve("a")
        loaded = gpu.load(model, lane)
        assert loaded.eager_because == "TensorRT launches its kernels itself"
        assert np.array_equal(gpu.run(loaded, lane, {"x": x})["y"], x + 1.0)
        assert np.array_equal(gpu.run(loaded, lane, {"x": x[:1]})["y"], x[:1] + 1.0)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({}, r"a plan that TensorRT 10\.0 cannot run on this GPU"),
        ({**PLAN, "z": PLAN["y"]}, r"tensors \['x', 'y', 'z'\]; expected \['x', 'y'\]"),
        ({**PLAN, "y": ["HALF", [-1, 3], 0]}, r"output 'y' of FP16 .*: FP32 \[-1, 3\]"),
        ({**PLAN, "x": ["FLOAT", [-1, 4], 16]}, r"input 'x' of FP32 \[-1, 4\]; .* \[-1, 3\]"),
        ({**PLAN, "x": ["FLOAT", [-1, 3], 4]}, "at most 4 rows; expected max_batch_size: 4"),
    ],
)
def test_a_plan_that_is_not_as_described_is_refused(
    tmp_path: Path, tensors: dict[str, Any], said: str
) -> None:
    with pytest.raises(RepositoryError, match=said):
        open_portable(planned(tmp_path / "plan", tensors), "cpu")
    with bench() as gpu, pytest.raises(RepositoryError, match=said):
        LoadedModel(gpu.context, planned(tmp_path / "plan", tensors))


def test_where_there_is_a_library_plans_are_found_and_need_a_gpu(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    model = planned(tmp_path / "plan", PLAN)
    folder, stated = tmp_path / "plan", {"platform": "tensorrt_plan"}
    for values in list[dict[str, Any]](({}, stated, {"default_model_filename": "model.plan"})):
        with pytest.raises(RepositoryError, match=r"a TensorRT plan, .*the ONNX model"):
            find_model(folder, ModelConfig("c", values))
    request.getfixturevalue("library")
    for values in list[dict[str, Any]](({}, stated, {"backend": "tensorrt"})):
        assert find_model(folder, ModelConfig("c", values)) == (Format.TENSORRT, "")
    with pytest.raises(RepositoryError, match="a GPU to serve it on"):
        open_model(model, 1, None)
