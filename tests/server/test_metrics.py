"""The metrics page, read by Prometheus's own parser and by the patterns of others."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from interlace.core.errors import Reason, ServeError
from interlace.core.request import Outcome, Reply, Request, StageTiming, Timing
from interlace.engine.snapshot import WeightsSnapshot
from interlace.server.model_table import BUCKETS_US, Duration, ModelTable, ServedModel
from interlace.server.statistics import (
    CpuGauges,
    GpuGauges,
    Metrics,
    MetricsPage,
    ModelGauges,
    ServerSnapshot,
    number,
)
from tests.server.fakes import one_to_one

GPU = GpuGauges("GPU-1", 0.5, 25_276_502_016, 10_000_000_000, 70.25, 300.0, 123456789.5)
WEIGHTS = WeightsSnapshot("loading", 1 << 20, 1 << 22, 5, 125.5)
SNAPSHOT = ServerSnapshot(
    models={"ident/1#0": ModelGauges(50.0, 1 << 30, 7, 123.5, WEIGHTS)},
    headroom_ratio=1.25,
    workers=2,
    worker_restarts=3,
    cpu=CpuGauges(0.25, 8 << 30, 1 << 30),
    gpus=(GPU,),
)


def table() -> ModelTable:
    table = ModelTable()
    table.publish(ServedModel(one_to_one("ident", slo_ms=100.0)))
    table.publish(ServedModel(one_to_one('odd "näme"\\')))
    statistics = table.resolve("ident").statistics
    request = Request(1, "ident/1#0", 0.0, 100.0, rows=4)
    timing = Timing(1.0, 0.2, 3.0, 0.3, 4)
    stages = (StageTiming("find", 1.0, 2.0, 9.0),)
    statistics.record(Reply(request, Outcome.OK, timing=timing, stages=stages), 5.0)
    statistics.record(Reply(request, Outcome.LATE, timing=timing), 150.0)
    late = ServeError(Reason.DEADLINE, "x")
    statistics.record(Reply(request, Outcome.REFUSED, error=late), 1.0)
    statistics.record(Reply(request, Outcome.EXPIRED, error=late), 1.0)
    statistics.record(Reply(request, Outcome.CANCELLED), 1.0)
    statistics.record(Reply(request, Outcome.FAILED, error=ServeError(Reason.BACKEND, "x")), 1.0)
    statistics.refused(ServeError(Reason.BAD_INPUT, "x"))
    statistics.executed(4, 0.2, 3.0, 0.3)
    statistics.pending = 2
    return table


@pytest.fixture(scope="module")
def page() -> str:
    return Metrics(table(), lambda: SNAPSHOT).render()


@pytest.fixture(scope="module")
def samples(page: str) -> dict[str, float]:
    return {
        # The parser adds _total to every counter, as OpenMetrics wants and Triton does not.
        sample.name.removesuffix("_total")
        + str(sorted((k, v) for k, v in sample.labels.items() if k != "version")): (sample.value)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_counts(samples: dict[str, float]) -> None:
    def of(name: str, **labels: str) -> float:
        return samples[
            name.removesuffix("_total") + str(sorted({"model": "ident", **labels}.items()))
        ]

    assert of("nv_inference_request_success") == 2
    assert of("nv_inference_count") == 8
    assert of("nv_inference_exec_count") == 1
    assert of("nv_inference_pending_request_count") == 2
    failures = {
        reason: of("nv_inference_request_failure", reason=reason)
        for reason in ("REJECTED", "CANCELED", "BACKEND", "OTHER")
    }
    assert failures == {"REJECTED": 2, "CANCELED": 1, "BACKEND": 1, "OTHER": 1}
    assert of("nv_inference_request_duration_us") == 155_000
    assert of("nv_inference_queue_duration_us") == 2000
    assert of("interlace_slo_within_total") == 1
    assert of("interlace_slo_missed_total") == 3
    assert of("interlace_slo_attainment_ratio") == 0.25
    assert of("interlace_refusals_total", reason="deadline") == 2
    assert of("interlace_stage_requests_total", stage="find") == 1
    spent = [
        of(f"interlace_stage_{one}_ms_total", stage="find") for one in ("wait", "run", "slack")
    ]
    assert spent == [1.0, 2.0, 9.0]
    assert (of("interlace_queue_rows"), of("interlace_model_share_pct")) == (7, 50)
    assert of("interlace_model_resident_bytes") == 1 << 30
    assert samples["interlace_headroom_ratio[]"] == 1.25
    assert samples["interlace_worker_restarts[]"] == 3
    assert samples["nv_cpu_utilization[]"] == 0.25


def test_histograms_are_cumulative_and_in_their_unit(samples: dict[str, float]) -> None:
    def bucket(name: str, le: str) -> float:
        return samples[f"{name}_bucket[('le', '{le}'), ('model', 'ident')]"]

    us = "nv_inference_request_duration_histogram_us"
    assert [bucket(us, le) for le in ("2500", "5000", "100000", "250000", "+Inf")] == [
        0,
        1,
        1,
        2,
        2,
    ]
    ms = "nv_inference_first_response_histogram_ms"
    assert [bucket(ms, le) for le in ("0.1", "5", "250", "+Inf")] == [0, 1, 2, 2]
    assert samples[f"{ms}_sum[('model', 'ident')]"] == 155


def test_perf_analyzer_finds_the_gpus(page: str) -> None:
    for name, value in (
        ("nv_gpu_utilization", 0.5),
        ("nv_gpu_power_usage", 70.25),
        ("nv_gpu_memory_used_bytes", 10_000_000_000),
        ("nv_gpu_memory_total_bytes", 25_276_502_016),
    ):
        match = re.search(rf'\n{name}\{{gpu_uuid="([^"]*)"\}} (\d+\.?\d*)', page)
        assert match is not None
        assert (match[1], float(match[2])) == ("GPU-1", value)


def test_no_gpu_no_gpu_names_and_the_page_is_ascii(page: str) -> None:
    assert page.isascii()
    bare = Metrics(ModelTable(), ServerSnapshot).render()
    assert "nv_gpu" not in bare
    assert "nv_cpu" not in bare
    assert list(text_string_to_metric_families(bare))


@given(st.floats(min_value=0, max_value=1e15))
def test_numbers_have_no_exponent(value: float) -> None:
    text = number(value)
    assert re.fullmatch(r"\d+(\.\d+)?", text)
    assert float(text) == pytest.approx(value, abs=1e-6)


@given(st.lists(st.floats(min_value=0, max_value=1e7)))
def test_a_histogram_counts_each_value_once(values: list[float]) -> None:
    duration = Duration()
    for value in values:
        duration.add(value)
    page = MetricsPage()
    page.family("x", "histogram", "x")
    page.add_histogram("x", duration, {})
    found = {
        sample.labels.get("le", sample.name): sample.value
        for family in text_string_to_metric_families(page.text())
        for sample in family.samples
    }
    for bound in BUCKETS_US:
        assert found[f"{bound}"] == sum(value <= bound for value in values)
    assert found["+Inf"] == found["x_count"] == len(values)


def test_weights_that_come_and_go_are_told(page: str) -> None:
    own = 'model="ident",version="1"'
    for line in (
        f'interlace_model_weights_state{{{own},state="loading"}} 1',
        f'interlace_model_weights_state{{{own},state="cold"}} 0',
        f"interlace_model_weights_held_bytes{{{own}}} 1048576",
        f"interlace_cold_starts_total{{{own}}} 5",
        f"interlace_cold_start_ms_total{{{own}}} 125.5",
    ):
        assert line in page
