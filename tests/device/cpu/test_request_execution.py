"""Batches of a Python backend model: each request with outputs or an error of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from interlace.core.errors import Reason, ServeError
from interlace.core.messages import CreatePartition, WorkFinished
from interlace.core.metric_change import MetricChange
from interlace.core.model import Model, ServiceTerms
from interlace.core.request import CallContext, Request
from interlace.core.tensor import Signature, TensorSpec
from tests.device.cpu.rig import Rig, python_model, settings

CODE = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        made = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            value = int(x.max())
            if value == 13:
                error = pb_utils.TritonError("unlucky", pb_utils.TritonError.INVALID_ARG)
                made.append(pb_utils.InferenceResponse([], error))
                continue
            if value == 99:
                raise ValueError("not this one")
            said = f"{len(requests)} {request.request_id()}".encode() + b"\\0"
            texts = np.array([[said]] * len(x), object)
            outputs = {"y": np.repeat(x, value, axis=1), "said": texts}
            made.append(pb_utils.InferenceResponse(
                [pb_utils.Tensor(name, array) for name, array in outputs.items()]))
        return made

    def finalize(self):
        with open(__file__ + ".ended", "w"):
            pass
"""
SIGNATURE = Signature(
    (TensorSpec("x", "FP32", (-1,)),),
    (TensorSpec("y", "FP32", (-1,)), TensorSpec("said", "BYTES", (1,))),
    batched=True,
    max_batch=32,
)


def made(folder: Path, name: str, stacked: bool = False) -> Model:
    return python_model(folder / name, CODE, SIGNATURE, ServiceTerms(100.0, stacked=stacked))


@pytest.fixture(scope="module")
def python_rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    rig = Rig(settings(tmp_path_factory.mktemp("weights"), opener="interlace.formats:open_model"))
    yield rig
    rig.close()


@pytest.fixture(scope="module")
def plain(python_rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return python_rig.serve(made(tmp_path_factory.mktemp("models"), "plain"))


def ask(rig: Rig, model: Model, *rows: float, outputs: tuple[str, ...] = ()) -> Request:
    x = rig.tensor("x", "FP32", np.array([[row] for row in rows], np.float32))
    context = CallContext(f"r{rows[0]:g}")
    return Request(next(rig._ids), model.key, 0.0, 1e9, len(rows), (), 0, (x,), outputs, context)


def read(rig: Rig, finished: WorkFinished) -> list[dict[str, object]]:
    assert finished.failure is None, finished.failure
    return [{one.name: rig.read(one).tolist() for one in each} for each in finished.outputs]


def test_requests_of_a_batch_have_shapes_and_errors_of_their_own(
    python_rig: Rig, plain: Model
) -> None:
    rig = python_rig
    asked = (ask(rig, plain, 1), ask(rig, plain, 13), ask(rig, plain, 2, 3, outputs=("y",)))
    finished = rig.run(*asked)
    assert read(rig, finished) == [
        {"y": [[1]], "said": [[b"3 r1\0"]]},
        {},
        {"y": [[2, 2, 2], [3, 3, 3]]},
    ]
    assert finished.errors == (
        None,
        ServeError(Reason.BAD_INPUT, "unlucky", retry_after_ms=math.inf),
        None,
    )
    assert [tensor.shape for tensor in finished.outputs[2]] == [(2, 3)]
    rig.free(finished)


def test_all_may_fail_and_hold_nothing(python_rig: Rig, plain: Model) -> None:
    finished = python_rig.run(ask(python_rig, plain, 13))
    assert read(python_rig, finished) == [{}] and len(finished.errors) == 1
    python_rig.free(finished)


def test_an_exception_fails_the_batch_of_several_and_answers_one(
    python_rig: Rig, plain: Model
) -> None:
    several = python_rig.run(ask(python_rig, plain, 1), ask(python_rig, plain, 99))
    assert several.failure is not None and not several.failure.fatal
    assert "ValueError: not this one (model.py, line 16)" in several.failure.detail
    alone = python_rig.run(ask(python_rig, plain, 99))
    assert alone.failure is None and alone.errors[0] is not None
    assert alone.errors[0].reason is Reason.BACKEND


def test_a_stacked_model_gets_one_request_for_a_batch(python_rig: Rig, tmp_path: Path) -> None:
    rig, model = python_rig, made(tmp_path, "stacked", stacked=True)
    assert rig.load(model).failure is None
    finished = rig.run(ask(rig, model, 1), ask(rig, model, 2, 2))
    assert read(rig, finished) == [
        {"y": [[1, 1]], "said": [[b"1 \0"]]},
        {"y": [[2, 2], [2, 2]], "said": [[b"1 \0"]] * 2},
    ]
    rig.free(finished)
    lone = rig.run(ask(rig, model, 3))
    assert read(rig, lone)[0]["said"] == [[b"1 r3\0"]]
    rig.free(lone)
    refused = rig.run(ask(rig, model, 13), ask(rig, model, 1))
    assert refused.failure is not None and "unlucky" in refused.failure.detail
    rig.unload(model)


def test_finalize_is_called_on_unload_and_when_the_partition_is_released(
    python_rig: Rig, tmp_path: Path
) -> None:
    python_rig.carve("end")
    for name in ("unloaded", "released"):
        model = made(tmp_path, name)
        ended = model.source.with_name("model.py.ended")
        assert python_rig.load(model, "end").failure is None and not ended.exists()
        if name == "unloaded":
            python_rig.unload(model, "end")
        else:
            python_rig.release("end")
        assert ended.exists()


def test_what_is_measured_is_not_counted(python_rig: Rig, tmp_path: Path) -> None:
    counts = """
    def initialize(self, args):
        self.family = pb_utils.MetricFamily("calls_total", "", pb_utils.MetricFamily.COUNTER)
        self.calls = self.family.Metric()
        self.calls.increment(1)
"""
    model = python_model(tmp_path / "m", CODE + counts, SIGNATURE, ServiceTerms(100.0))
    counted: list[MetricChange] = []
    share = python_rig.device.gpu.shares_pct[0]
    python_rig.device.serve_code(python_rig.device._callees, counted.extend)
    for name, quiet in (("measured", True), ("served", False)):
        python_rig.end_of(CreatePartition(python_rig.gpu, name, share, quiet=quiet))
        assert python_rig.load(model, name).failure is None
        assert [one.added for one in counted] == ([] if quiet else [1.0])
        python_rig.release(name)


def _faults(pid: int) -> int:
    """Pages that a process was given without reading a file, since it began."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])


def test_memory_that_a_batch_frees_is_there_for_the_next(python_rig: Rig, plain: Model) -> None:
    rig = python_rig
    columns = rig.tensor("x", "FP32", np.ones((1, 1 << 18), np.float32))  # 1 MiB a request
    asked = [rig.request(plain, columns) for _ in range(4)]
    pid, faults = rig.device.workers()["p"], list[int]()
    for _ in range(6):
        rig.free(rig.run(*asked))
        faults.append(_faults(pid))
    assert faults[-1] - faults[-4] < 1000  # of 12 MiB in each, 3,000 pages
