"""What parts of gpu-check measure with, on a fake GPU; and its versions."""

import time
from pathlib import Path

import pytest
import torch

from bench.gpu import versions
from bench.gpu.bench import Bench
from bench.gpu.lanes import ask_sms, captured, lanes, quantile, rate_gbs, ratio, sms_of
from bench.gpu.rows import Verdict
from interlace.device.cuda.backend.base import CudaBackend
from tests.device.cuda.fake import FakeDriver
from tests.device.cuda.fake.capture import on


def bench(out: Path, driver: FakeDriver | None = None) -> Bench:
    def backend() -> CudaBackend:
        return on(driver or FakeDriver())

    return Bench(True, out, time.monotonic() + 60.0, backend)


def test_versions_are_told(tmp_path: Path) -> None:
    rows = list(versions.rows(bench(tmp_path)))
    assert rows
    assert not [row for row in rows if row.verdict is Verdict.FAILED]


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
