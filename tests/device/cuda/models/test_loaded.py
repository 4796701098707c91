"""Models on lanes: capture aside, eagerly where it must be, memory taken and given back."""

import threading
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from interlace.core.model import Format, Model, SampleValue
from interlace.core.tensor import Signature, TensorSpec
from interlace.device.cuda.driver.api import CudaError
from interlace.device.cuda.graphs.program import GraphProgram
from interlace.device.cuda.memory.budget import DeviceMemoryError
from interlace.device.cuda.models.loaded import LoadedModel
from interlace.device.process.error_text import MemoryLimitError
from interlace.formats.opened import DeclaredSignature, OpenedModel, keyword_call
from tests.device.cuda.models.rig import Bench, bench, borrow
from tests.formats.making import a_model

WIDTH = 64
Forward = Callable[..., Any]


def plain(x: torch.Tensor, weight: torch.Tensor) -> Any:
    return {"y": x @ weight, "sum": x.sum(-1)}


def model(max_batch: int = 8, dims: tuple[int, ...] = (WIDTH,), out: int = WIDTH) -> Model:
    outputs = (TensorSpec("y", "FP32", (*dims[:-1], out)), TensorSpec("sum", "FP32", dims[:-1]))
    signature = Signature((TensorSpec("x", "FP32", dims),), outputs, True, max_batch)
    return a_model(Format.FACTORY, Path("none"), signature, sample={"x": (3, WIDTH)[-len(dims) :]})


def opened_as(forward: Forward) -> Callable[[Model], OpenedModel]:
    """Instead of a file."""

    def open_model(described: Model) -> OpenedModel:
        torch.manual_seed(0)
        weight = torch.randn(WIDTH, WIDTH)
        call = keyword_call(lambda x: forward(x, weight))
        return OpenedModel(
            call, {"weight": weight}, DeclaredSignature("here", described.signature.inputs)
        )

    return open_model


def gpu_with(forward: Forward = plain, **changes: Any) -> Any:
    return bench(open_model=opened_as(forward), **changes)


def batch(rows: int, *dims: int, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    shape = (rows, *(dims or (WIDTH,)))
    return {"x": np.random.default_rng(seed).standard_normal(shape, np.float32)}


def test_answers_are_the_same_on_every_lane_of_a_size() -> None:
    with gpu_with() as gpu:
        lanes = [gpu.carve(name) for name in ("a", "b", "c")]
        loaded = gpu.load(model(), *lanes)
        found = [gpu.run(loaded, lane, batch(5)) for lane in lanes]
        for other in found[1:]:
            assert all(np.allclose(found[0][name], other[name], atol=1e-5) for name in other)
        assert loaded.weights_bytes == WIDTH * WIDTH * 4  # once for all


def test_padding_is_zeroes_and_only_real_rows_come_out() -> None:
    seen: list[torch.Tensor] = []

    def forward(x: torch.Tensor, weight: torch.Tensor) -> Any:
        seen.append(x.clone())
        return plain(x, weight)

    with gpu_with(forward) as gpu:
        lane = gpu.carve("a")
        loaded = gpu.load(model(), lane, batches=(8,))
        gpu.run(loaded, lane, batch(8, seed=1))
        found = gpu.run(loaded, lane, batch(3))
        assert seen[-1].shape == (8, WIDTH)
        assert torch.equal(seen[-1][:3], torch.from_numpy(batch(3)["x"]))
        assert not seen[-1][3:].any()
        assert found["y"].shape == (3, WIDTH)


def test_models_that_load_wait_for_each_other_while_others_are_served() -> None:
    """Two threads load while this one launches: the driver refuses two captures at once."""
    with bench(pace="threads", open_model=opened_as(plain)) as gpu:
        lane = gpu.carve("served")
        served = gpu.load(model(), lane)
        wanted = gpu.run(served, lane, batch(4))
        others = [gpu.carve("x"), gpu.carve("y")]
        errors: list[BaseException] = []

        def load() -> None:
            try:
                for other in others:
                    served.prepare(other, ())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=load)
        thread.start()
        while thread.is_alive():
            assert np.allclose(gpu.run(served, lane, batch(4))["y"], wanted["y"], atol=1e-5)
        thread.join()
        assert not errors
        assert all(served.ready(other, ()) for other in others)


def fails_captured(x: torch.Tensor, weight: torch.Tensor) -> Any:
    """As ``.item()`` does during a capture: works eagerly only."""
    if CAPTURING and CAPTURING[-1]():
        raise RuntimeError("operation not permitted when stream is capturing\nmore")
    return plain(x, weight)


CAPTURING: list[Callable[[], bool]] = []


@pytest.fixture
def eager_gpu() -> Any:
    with gpu_with(fails_captured) as gpu:
        CAPTURING.append(lambda: gpu.driver._recordings.current is not None)
        yield gpu
        CAPTURING.clear()


def test_what_cannot_be_captured_runs_eagerly_and_says_why(eager_gpu: Bench) -> None:
    gpu = eager_gpu
    lane = gpu.carve("a")
    loaded = gpu.load(model(), lane)
    assert loaded.eager_because == (
        "RuntimeError: operation not permitted when stream is capturing"
    )
    assert gpu.notes[0] == f"m/1#0 is captured again: {loaded.eager_because}"
    assert gpu.notes[1].startswith(f"m/1#0 loaded, fp32, run eagerly ({loaded.eager_because})")
    assert loaded.ready(lane, (1,))
    for rows in (3, 1, 3):
        given = batch(rows)
        found = gpu.run(loaded, lane, given)
        weight = loaded._portable._opened.tensors["weight"].numpy()
        assert np.allclose(found["y"], given["x"] @ weight, atol=1e-5)
    assert gpu.driver.calls["launch_graph"] == 0
    loaded.close()


@pytest.mark.parametrize("where", ["only in captures", "only on the second lane"])
def test_a_kernel_that_a_capture_meets_first_costs_a_second_one(where: str) -> None:
    """It is loaded at its first launch, which the driver refuses inside a capture."""
    gpus: list[Bench] = []
    lanes: list[object] = []

    def forward(x: torch.Tensor, weight: torch.Tensor) -> Any:
        driver = gpus[0].driver
        recording = driver._recordings.current
        if where == "only in captures":
            driver.first_use("masks" if recording is not None else "other masks")
        elif recording is not None and len(lanes) == 2:
            driver.first_use("for few SMs")
        return plain(x, weight)

    with gpu_with(forward) as gpu:
        gpus.append(gpu)
        lanes.append(gpu.carve("a"))
        loaded = gpu.load(model(), lanes[0], batches=(1, 8))
        lanes.append(gpu.carve("b", 6))
        loaded.prepare(lanes[1], (1, 8))
        assert not loaded.eager_because
        for lane in lanes:
            launches = gpu.driver.calls["launch_graph"]
            assert np.isfinite(gpu.run(loaded, lane, batch(3))["y"]).all()
            assert gpu.driver.calls["launch_graph"] == launches + 1
        again = [note for note in gpu.notes if "captured again" in note]
        assert len(again) == 1 and "STREAM_CAPTURE_UNSUPPORTED" in again[0]


def test_other_shapes_run_eagerly_beside_graphs() -> None:
    with gpu_with() as gpu:
        lane = gpu.carve("a")
        loaded = gpu.load(model(dims=(-1, WIDTH)), lane, batches=(2,))
        graphs = gpu.driver.calls["launch_graph"]
        captured = gpu.run(loaded, lane, batch(2, 3, WIDTH))
        assert gpu.driver.calls["launch_graph"] == graphs + 1
        for tokens, rows in ((5, 2), (3, 4), (5, 2)):
            given = batch(rows, tokens, WIDTH)
            found = gpu.run(loaded, lane, given)
            assert found["sum"].shape == (rows, tokens)
            assert np.allclose(found["sum"], given["x"].sum(-1), atol=1e-4)
        assert gpu.driver.calls["launch_graph"] == graphs + 1
        assert captured["y"].shape == (2, 3, WIDTH)


def test_sizes_that_follow_from_values_are_refused() -> None:
    def forward(x: torch.Tensor, weight: torch.Tensor) -> Any:
        kept = 1 + int(x.max().item() > 100)
        return {"y": x @ weight, "sum": x.sum(-1)[:, :kept]}

    with gpu_with(forward) as gpu:
        described = model(dims=(-1, WIDTH))
        lane = gpu.carve("a")
        loaded = gpu.load(described, lane, batches=(2,))
        given = batch(2, 7, WIDTH)
        gpu.run(loaded, lane, given)
        given["x"][0, 0, 0] = 1e6
        with pytest.raises(ValueError, match="sizes of outputs must follow"):
            gpu.run(loaded, lane, given)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda x, w: {"y": (x @ w).double(), "sum": x.sum(-1)}, "came as torch.float64"),
        (lambda x, w: {"y": (x @ w)[:, 1:], "sum": x.sum(-1)}, r"came with shape \[8, 63\]"),
        (lambda x, w: {"y": x @ w}, "outputs .* are described, but the model returned 1"),
    ],
)
def test_results_that_contradict_the_signature(result: Forward, message: str) -> None:
    with gpu_with(result) as gpu:
        lane = gpu.carve("a")
        loaded = gpu.load(model(), lane)
        assert loaded.eager_because
        with pytest.raises(ValueError, match=message):
            gpu.run(loaded, lane, batch(8))


def test_memory_is_really_given_back_and_shown() -> None:
    with gpu_with() as gpu:
        lane = gpu.carve("a")
        before = gpu.driver.memory()
        loaded = gpu.load(model(), lane)
        taken = before.free_bytes - gpu.driver.memory().free_bytes
        assert loaded.resident_bytes == taken > loaded.weights_bytes > 0
        loaded.close()
        assert gpu.driver.memory() == before
        assert "m/1#0 loaded, fp32, as graphs of 1, 2, 3, 4, 6, 8 rows: " in gpu.notes[0]
        assert "m/1#0 unloaded: " in gpu.notes[1]
        assert lane.capture_stream is None  # the lane may be retired
        loaded.close()  # twice is once


def test_more_than_the_operator_allows_is_not_loaded() -> None:
    described = model()
    for limit, first in ((1000, True), (2 << 20, False)):
        with gpu_with() as gpu:
            terms = replace(described.terms, memory_limit_bytes=limit)
            lane, other = gpu.carve("a"), gpu.carve("b")
            loaded = LoadedModel(gpu.context, replace(described, terms=terms))
            if not first:  # one graph of 1 MiB fits, that of the second lane does not
                loaded.prepare(lane, (1,))
            with pytest.raises(MemoryLimitError, match="raise the limit"):
                loaded.prepare(lane if first else other, (1,))
            assert first or loaded.ready(lane, (1,))
            assert not loaded.ready(other, (1,))
            assert other.capture_stream is None
            if not first:
                gpu.run(loaded, lane, batch(1))
            loaded.close()


def test_a_second_process_borrows_the_weights() -> None:
    """A process of an MPS partition: the same numbers, and no memory of its own for them."""
    with gpu_with() as gpu:
        lane = gpu.carve("a")
        loaded = gpu.load(model(), lane, batches=(4,))
        wanted = gpu.run(loaded, lane, batch(3))
        sent, own_bytes = borrow("loaded", loaded.share())
        found = np.frombuffer(bytes.fromhex(sent), np.float32).reshape(3, WIDTH)
        assert np.allclose(found, wanted["y"], atol=1e-5) and own_bytes == "0"


CALLS = ("allocate", "stream", "launch", "synchronize", "allocate_mapped")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("skip", range(4))
def test_a_load_that_fails_leaves_nothing(call: str, skip: int) -> None:
    """Whatever call fails, and whenever: all is given back, and the next load works."""
    with gpu_with() as gpu:
        lane = gpu.carve("a")
        gpu.driver.fail(call, "CUDA_ERROR_OUT_OF_MEMORY", skip=skip)
        loaded = LoadedModel(gpu.context, model())
        with suppress(CudaError, MemoryError, DeviceMemoryError):
            loaded.prepare(lane, (1, 8))
        loaded.close()
        assert lane.capture_stream is None
        gpu.driver._faults._planned.clear()
        again = gpu.load(model(), lane, batches=(1, 8))
        assert np.isfinite(gpu.run(again, lane, batch(5))["y"]).all()


@pytest.mark.parametrize(
    ("call", "skip"), [("allocate", 0), ("stream", 0), ("launch", 0), ("launch", 6)]
)
def test_a_lane_that_fails_leaves_the_others_alone(call: str, skip: int) -> None:
    with gpu_with() as gpu:
        a, b = gpu.carve("a"), gpu.carve("b")
        loaded = gpu.load(model(), a)
        wanted = gpu.run(loaded, a, batch(3))
        gpu.driver.fail(call, "CUDA_ERROR_OUT_OF_MEMORY", skip=skip)
        with pytest.raises((CudaError, MemoryError, DeviceMemoryError)):
            loaded.prepare(b, ())
        assert b.capture_stream is None
        assert np.allclose(gpu.run(loaded, a, batch(3))["y"], wanted["y"], atol=1e-5)
        loaded.prepare(b, ())
        assert np.allclose(gpu.run(loaded, b, batch(3))["y"], wanted["y"], atol=1e-5)


def test_more_batch_sizes_are_added_to_those_that_serve() -> None:
    with gpu_with() as gpu:
        lane = gpu.carve("a")
        loaded = gpu.load(model(), lane, batches=(2,))
        before = loaded._caches[lane].graphs
        assert not loaded.ready(lane, (2, 8))
        loaded.prepare(lane, (2, 8))
        assert loaded._caches[lane].graphs[0] is before[0]
        assert loaded._caches[lane].buckets == (2, 8)
        program = loaded.program(lane, 5, {"x": (5, WIDTH)})
        assert isinstance(program, GraphProgram)
        assert program.rows == 8


def test_a_model_is_warmed_on_the_operators_values() -> None:
    """As on cores: a model that made-up values break is captured on those that it is for."""
    seen: list[float] = []

    def picky(x: torch.Tensor, weight: torch.Tensor) -> Any:
        seen.append(float(x.min()))
        if x.min() < 5:
            raise ValueError("too small")
        return plain(x, weight)

    values = {"x": SampleValue("[7]")}
    with gpu_with(picky) as stand:
        lane = stand.carve("a")
        with closing(stand.load(replace(model(), values=values), lane, batches=(1,))) as loaded:
            assert set(seen) == {7.0} and loaded.runs()
        with closing(stand.load(model(), lane, batches=(1,))) as other:
            assert not other.runs()
        assert any("too small" in note for note in stand.notes)
