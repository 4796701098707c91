"""The checks of gpu-check on a fake GPU: what holds by construction is found to hold, and a GPU
that behaves otherwise is found out."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from bench.gpu.bench import Bench
from bench.gpu.checks import completion, graph_memory, green_cost, split, versions
from bench.gpu.lanes import ask_sms, captured, lanes, quantile, rate_gbs, ratio, sms_of
from bench.gpu.rows import Row, Verdict
from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.driver.errors import CudaError
from tests.device.cuda.fake import FakeDriver
from tests.device.cuda.fake.backend import on

CHECKS = (completion, graph_memory, green_cost, split, versions)


def bench(out: Path, driver: FakeDriver | None = None) -> Bench:
    def backend() -> CudaBackend:
        return on(driver or FakeDriver())

    return Bench(True, out, time.monotonic() + 60.0, backend)


def by_what(rows: Iterable[Row]) -> dict[str, Row]:
    return {row.what: row for row in rows}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.rpartition(".")[2])
def test_a_check_comes_to_its_end_and_leaves_nothing(check: object, tmp_path: Path) -> None:
    rows = list(check.rows(bench(tmp_path)))  # type: ignore[attr-defined]
    assert rows
    assert not [row for row in rows if row.verdict is Verdict.FAILED]


def test_partitions_run_side_by_side_while_the_ladder_stands(tmp_path: Path) -> None:
    rows = list(green_cost.overlap(bench(tmp_path)))
    assert not [row for row in rows if row.verdict is Verdict.FAILED]
    assert sum("at once while the ladder stands" in row.what for row in rows) == 5


def test_partitions_are_found_apart(tmp_path: Path) -> None:
    rows = by_what(split.rows(bench(tmp_path)))
    for what in ("SMs of both sides", "SMs of either side", "atoms", "atoms of 8"):
        assert rows[what].verdict is Verdict.AS_EXPECTED, what


def test_a_gpu_that_grants_fewer_sms_is_found_out(tmp_path: Path) -> None:
    driver = FakeDriver()
    driver.grant = lambda sms: sms - 8 if sms > 8 else sms
    rows = by_what(split.rows(bench(tmp_path, driver)))
    assert rows["one partition of several atoms and the rest"].verdict is Verdict.OTHER
    assert rows["SMs of either side"].verdict is Verdict.OTHER


def test_a_limit_on_green_contexts_is_found(tmp_path: Path) -> None:
    driver = FakeDriver()
    driver.fail("green", "CUDA_ERROR_OUT_OF_MEMORY", skip=5)
    rows = by_what(green_cost.rows(bench(tmp_path, driver)))
    row = rows["green contexts at once"]
    assert row.verdict is Verdict.OTHER
    assert row.figures["count"] == 5


def test_a_gpu_that_fails_fails_the_question_and_is_told(tmp_path: Path) -> None:
    driver = FakeDriver()
    driver.fail("run", "CUDA_ERROR_ILLEGAL_ADDRESS", skip=3)
    rows: list[Row] = []
    with pytest.raises(CudaError):  # nothing can be given back: the part has to run again
        rows.extend(split.rows(bench(tmp_path, driver)))
    assert any("CUDA_ERROR_ILLEGAL_ADDRESS" in row.found for row in rows)


def test_the_sms_of_a_lane_are_read_back(tmp_path: Path) -> None:
    with bench(tmp_path).backend() as backend, lanes(backend.driver) as cut:
        lane = cut.first(24)
        ran = sms_of(backend, lambda a, b: ask_sms(backend, lane.stream, a, b), lane.stream)
    assert ran == set(range(24))


def test_rates_of_a_clock_that_stands_still_are_no_rates() -> None:
    assert ratio(1.0, 0.0) != ratio(1.0, 0.0)
    assert rate_gbs(5e9, 1000.0) == pytest.approx(5.0)
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0


def test_a_lane_waits_for_tensors_that_torch_makes_on_its_own_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: order.append("made"))
    with bench(tmp_path).backend() as backend, lanes(backend.driver) as cut:
        on_gpu = backend._replace(torch_device="cuda:0")
        with captured(on_gpu, cut.first(16), lambda: order.append("used")):
            pass
    assert order[:2] == ["made", "used"]


def test_a_slow_launch_is_no_delay_of_learning_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = FakeDriver.launch_graph

    def slow(self: FakeDriver, executable: int, stream: int) -> None:
        time.sleep(0.2)
        launch(self, executable, stream)

    monkeypatch.setattr(FakeDriver, "launch_graph", slow)
    monkeypatch.setattr(completion, "_WARM", 1)
    made = bench(tmp_path)
    with made.backend() as backend, lanes(backend.driver) as cut:
        body = completion.layers.convolution(made, backend.torch_device)
        known = completion.timed(made, backend, cut.first(64), body, "blocking", 2)
    assert min(known.took_ms) >= 200.0 and known.end_ms >= 200.0
    assert min(known.took_ms) - known.end_ms < 150.0
