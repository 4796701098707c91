"""Libraries whose handles take streams of their own context alone, on lanes of green contexts."""

import sys
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from interlace.device.cuda.backend.base import ContextThreads
from interlace.device.cuda.backend.trials import wait_refusal
from interlace.device.cuda.driver.api import CudaError
from interlace.device.cuda.lanes import Lane
from interlace.device.cuda.models.loaded import LoadedModel
from tests.device.cuda.conftest import MakeRig
from tests.device.cuda.fake.driver import FakeDriver
from tests.device.cuda.fake.handles import convolution
from tests.device.cuda.models.cold_rig import ALL, stand
from tests.device.cuda.models.rig import Bench, bench
from tests.device.cuda.models.test_loaded import WIDTH, batch, model, opened_as, plain
from tests.device.cuda.torch_models import REAL
from tests.device.models import model as described

REFUSED = "STREAM_MISMATCH"


def convolves(x: torch.Tensor, weight: torch.Tensor) -> Any:
    convolution()
    return plain(x, weight)


def two_ways(gpu: Bench, lane: Lane) -> list[Any]:
    """A batch in a graph, and one of another shape, which runs eagerly."""
    loaded = gpu.load(model(dims=(-1, WIDTH)), lane, batches=(2,))
    found = [gpu.run(loaded, lane, batch(2, tokens, WIDTH))["y"] for tokens in (3, 5)]
    assert not loaded.eager_because
    return found


@pytest.mark.parametrize("pace", ["at once", "threads"])
def test_handles_of_the_lanes_context_serve_graphs_and_eager_runs(pace: str) -> None:
    wanted = None
    for share_pct, context in ((100, "primary"), (24, "green"), (48, "green")):
        with bench(pace, handle_context=context, open_model=opened_as(convolves)) as gpu:
            found = two_ways(gpu, gpu.carve("a", share_pct))
            wanted = wanted or found
            assert all(
                np.allclose(one, other, atol=1e-5) for one, other in zip(found, wanted, strict=True)
            )


def test_loading_on_a_lane_does_not_hold_up_what_runs_there_eagerly() -> None:
    loading, served = threading.Event(), threading.Event()

    def forward(x: torch.Tensor, weight: torch.Tensor) -> Any:
        convolution()
        if loading.is_set() and threading.current_thread().name.startswith("loader"):
            raise AssertionError("work of a lane on a thread that is none of its context's")
        if loading.is_set() and x.shape[-2] == 7:  # the model that loads
            assert served.wait(30.0)
        return plain(x, weight)

    with bench("threads", handle_context="green", open_model=opened_as(forward)) as gpu:
        lane = gpu.carve("a")
        one = gpu.load(model(dims=(-1, WIDTH)), lane, batches=(1,))
        other = LoadedModel(gpu.context, replace(model(dims=(7, WIDTH)), name="other"))
        loading.set()
        loader = threading.Thread(target=lambda: other.prepare(lane, (1,)), name="loader")
        loader.start()
        for _ in range(3):
            found = gpu.run(one, lane, batch(2, 5, WIDTH))
            assert found["y"].shape == (2, 5, WIDTH)
        served.set()
        loader.join()
        assert other.ready(lane, (1,)) and not other.eager_because
        other.close()
        one.close()


def test_each_caller_has_a_thread_for_each_context(driver: FakeDriver) -> None:
    threads = ContextThreads(driver)
    greens = [driver.green(driver.split(8).atoms[:2]) for _ in range(2)]
    seen: list[tuple[int, int | None]] = []

    def note() -> None:
        seen.append((threading.get_ident(), driver.current))

    def nested() -> None:
        note()
        threads.run(greens[0], note)

    def call() -> None:
        for green in (*greens, None):
            threads.run(green, note)
        threads.run(greens[0], nested)

    call()
    other = threading.Thread(target=call)
    other.start()
    other.join()
    mine, others = seen[:5], seen[5:]
    for one in (mine, others):
        assert [context for _, context in one] == [
            greens[0].handle, greens[1].handle, None, greens[0].handle, greens[0].handle,
        ]  # fmt: skip
        assert one[0] == one[3] == one[4]
        assert len({thread for thread, _ in one}) == 3
    assert mine[2][0] == threading.get_ident()
    assert not {thread for thread, _ in mine} & {thread for thread, _ in others[:2]}
    with pytest.raises(SystemExit, match="7"):
        threads.run(greens[1], lambda: sys.exit(7))
    threads.close()
    for green in greens:
        driver.destroy_green(green)


@pytest.mark.parametrize(
    ("context", "works"), [("auto", True), ("green", True), ("primary", False)]
)
def test_a_device_finds_out_how_such_a_model_is_served(
    make_rig: MakeRig, context: str, works: bool, caplog: pytest.LogCaptureFixture
) -> None:
    backend = "tests.device.cuda.backends:own_handles"
    rig = make_rig(handle_context=context, backend=backend)
    handles = "partitions have library handles and threads of their own"
    known = described("convolution")
    rig.serve(known)
    finished = rig.run(rig.floats(known, [1.0, 2.0, 3.0, REAL]))
    assert (finished.failure is None) is works
    assert (handles in caplog.messages[0]) is (context == "auto")
    if works:
        assert rig.values(finished) == [[[2.0, 4.0, 6.0, 2 * REAL]]]
        other = rig.run(rig.floats(known, [1.0, 2.0]))  # no graph has this shape
        assert rig.values(other) == [[[2.0, 4.0]]]


def test_a_device_whose_partitions_take_no_convolution_says_so_and_serves_others(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture
) -> None:
    backend = "tests.device.cuda.backends:no_convolutions"
    rig = make_rig(backend=backend)
    known = described("double")
    assert rig.carve("p").failure is None
    assert "are served with --device streams or mps" in caplog.messages[0]
    assert REFUSED in caplog.messages[0]
    assert rig.load(known, "p").failure is None
    assert rig.values(rig.run(rig.floats(known, [1.0, 2.0]))) == [[[2.0, 4.0]]]


def test_a_graph_that_does_not_wait_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench("threads") as one:
        one.driver.cost_s = lambda name, arguments, sms: arguments[0] / 1e8 * (name == "spin")
        assert wait_refusal(one.backend, one.memory) == ""
        monkeypatch.setattr(one.driver, "wait", lambda *_, external: None)
        assert "before" in wait_refusal(one.backend, one.memory)


def test_a_gpu_that_failed_is_no_refusal() -> None:
    with pytest.raises(CudaError), bench("threads") as one:
        one.driver.fail("wait", "CUDA_ERROR_ILLEGAL_ADDRESS")
        wait_refusal(one.backend, one.memory)


def test_models_then_run_eagerly_and_right() -> None:
    with stand() as one:
        one.gpu.context = one.gpu.context._replace(cold_eager_because="graphs do not wait")
        cold = one.load()
        assert one.models[1].eager_because == "graphs do not wait"
        assert one.runs()
        cold.fetch(tuple(ALL))
        assert one.runs() and one.runs(rows=2)
