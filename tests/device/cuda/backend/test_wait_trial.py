"""Graphs that wait for weights, where a driver has them do so; and models where it does not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from interlace.device.cuda.backend.trials import wait_refusal
from interlace.device.cuda.driver.errors import CudaError
from tests.device.cuda.models.cold_rig import ALL, stand
from tests.device.cuda.models.rig import Bench


@contextmanager
def gpu() -> Iterator[Bench]:
    made = Bench("threads")
    made.driver.libraries.lenient = True
    yield made
    made.close()


def test_a_driver_that_has_graphs_wait_is_taken_at_its_word() -> None:
    with gpu() as one:
        one.driver.cost_s = lambda name, arguments, sms: arguments[0] / 1e9 * (name == "spin")
        assert wait_refusal(one.backend, one.memory) == ""


def test_a_wait_that_a_capture_refuses_is_said() -> None:
    with gpu() as one:
        one.driver.fail("wait", "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED")
        assert "CAPTURE_UNSUPPORTED" in wait_refusal(one.backend, one.memory)


def test_a_graph_that_does_not_wait_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with gpu() as one:
        one.driver.cost_s = lambda name, arguments, sms: arguments[0] / 1e8 * (name == "spin")
        monkeypatch.setattr(one.driver, "wait", lambda *_, external: None)
        assert "before" in wait_refusal(one.backend, one.memory)


def test_a_gpu_that_failed_is_no_refusal() -> None:
    with pytest.raises(CudaError), gpu() as one:
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
