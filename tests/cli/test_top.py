"""Frames of `interlace top`: rates between two readings, and what a restart looks like."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from interlace.cli.top import ModelRow, ScrapeDelta, bucket_quantile, read_metrics, render
from tests.cli.planning import invoke

from .fakeserver import FakeServer

LABELS = 'model="cnn",version="1"'


def page(within: int, missed: int, refused: int, fast: int, slow: int) -> str:
    total = fast + slow
    name = "nv_inference_request_duration_histogram_us_bucket"
    return "\n".join(
        [
            f"interlace_slo_ms{{{LABELS}}} 50",
            f"interlace_slo_within_total{{{LABELS}}} {within}",
            f"interlace_slo_missed_total{{{LABELS}}} {missed}",
            f'interlace_refusals_total{{{LABELS},reason="deadline"}} {refused}',
            f"nv_inference_request_success{{{LABELS}}} {total}",
            f'nv_inference_request_failure{{{LABELS},reason="REJECTED"}} {refused}',
            f'{name}{{{LABELS},le="10000"}} {fast}',
            f'{name}{{{LABELS},le="50000"}} {total}',
            f'{name}{{{LABELS},le="+Inf"}} {total}',
            f"interlace_queue_rows{{{LABELS}}} 7",
            f"interlace_model_share_pct{{{LABELS}}} 50",
            f"interlace_model_resident_bytes{{{LABELS}}} 5000000",
            f"interlace_model_capacity_rows_per_s{{{LABELS}}} 120",
            "interlace_headroom_ratio 1.5",
            "interlace_workers 2",
        ]
    )


def row(before: str, after: str, seconds: float = 2.0) -> ModelRow:
    [found] = ScrapeDelta(read_metrics(before), read_metrics(after), seconds).rows()
    return found


def test_rates_are_what_grew_in_between() -> None:
    found = row(page(100, 10, 5, 90, 20), page(180, 30, 25, 150, 60))
    assert found.requests_rps == pytest.approx((100 + 20) / 2)
    assert found.goodput_rps == pytest.approx(40)
    assert found.in_slo == pytest.approx(0.8)
    assert found.refused_rps == pytest.approx(10)
    assert found.p50_ms == pytest.approx(10 * 50 / 60)  # 60 of 100 within the first 10 ms
    assert found.p99_ms is not None
    assert 10 < found.p99_ms <= 50
    assert (found.queue_rows, found.share_pct, found.capacity_rows_per_s) == (7, 50, 120)


def test_weights_that_come_and_go_have_columns() -> None:
    def weights(starts: int, state: str) -> str:
        return "\n".join(
            [
                page(1, 0, 0, 1, 0),
                *(
                    f'interlace_model_weights_state{{{LABELS},state="{one}"}} {int(one == state)}'
                    for one in ("resident", "loading", "cold")
                ),
                f"interlace_model_weights_bytes{{{LABELS}}} 40000000",
                f"interlace_model_weights_held_bytes{{{LABELS}}} 10000000",
                f"interlace_cold_starts_total{{{LABELS}}} {starts}",
                f"interlace_cold_start_ms_total{{{LABELS}}} {60 * starts}",
            ]
        )

    before, after = read_metrics(weights(2, "resident")), read_metrics(weights(6, "cold"))
    between = ScrapeDelta(before, after, 2.0)
    [found] = between.rows()
    assert (found.weights, found.cold_starts, found.cold_ms) == ("cold", 4, 240)
    assert ["cold", "10/40", "2.00", "60"] in [
        line.split()[-4:] for line in _printed(between).splitlines()
    ]
    assert "cn" in _printed(between, 100), "names stay where there is little room"
    still = read_metrics(page(1, 0, 0, 1, 0))
    assert "weights" not in _printed(ScrapeDelta(still, still, 1.0))


def _printed(between: ScrapeDelta, width: int = 180) -> str:
    console = Console(width=width, record=True)
    console.print(render(between, "here"))
    return console.export_text()


def test_nothing_happened() -> None:
    found = row(page(100, 10, 5, 90, 20), page(100, 10, 5, 90, 20))
    assert found.requests_rps == found.goodput_rps == found.refused_rps == 0
    assert found.in_slo is found.p50_ms is found.p99_ms is None


def test_a_restarted_server_counts_from_zero() -> None:
    found = row(page(100, 10, 5, 90, 20), page(8, 2, 0, 10, 0))
    assert found.goodput_rps == pytest.approx(4)
    assert found.in_slo == pytest.approx(0.8)


def test_one_frame() -> None:
    with FakeServer(texts={"/metrics": page(100, 10, 5, 90, 20)}) as fake:
        result = invoke("top", fake.url, "--once", "--interval", "0.01")
    assert result.exit_code == 0
    assert "headroom x1.50" in result.stdout
    assert "cnn" in result.stdout
    assert "good/s" in result.stdout


def test_what_is_no_server_is_told() -> None:
    with FakeServer(texts={"/metrics": "<html></html>"}) as fake:
        result = invoke("top", fake.url, "--once")
    assert "is not a page of metrics" in str(result.exception)


PAGE = """\
# HELP served Requests answered.
# TYPE served counter
served{model="a",version="1"} 3
served{model="a",version="2"} 4
served{model="b \\"x\\" \\\\ \\n",version="1"} 5 1700000000
plain 1.5e3
broken{model="a"} three
latency_us_bucket{model="a",le="100"} 2
latency_us_bucket{model="a",le="200"} 6
latency_us_bucket{model="a",le="+Inf"} 8
"""


def test_quantiles_are_linear_inside_a_bucket() -> None:
    counts = read_metrics(PAGE).buckets("latency_us", {"model": "a"})
    assert counts == {100.0: 2, 200.0: 6, float("inf"): 8}
    assert bucket_quantile(counts, 0.25) == pytest.approx(100.0)
    assert bucket_quantile(counts, 0.5) == pytest.approx(150.0)
    assert bucket_quantile(counts, 0.99) == 200.0  # above the last bound: no better word for it
    assert bucket_quantile({}, 0.5) is None
    assert bucket_quantile({100.0: 0, float("inf"): 0}, 0.5) is None


@given(st.lists(st.integers(0, 20), min_size=1, max_size=8), st.floats(0.0, 1.0))
def test_quantiles_stay_within_the_bounds_and_ascend(counts: list[int], share: float) -> None:
    cumulative = {float(i + 1): float(sum(counts[: i + 1])) for i in range(len(counts))}
    found = bucket_quantile(cumulative, share)
    if sum(counts) == 0:
        assert found is None
        return
    assert found is not None
    assert 0.0 <= found <= len(counts)
    highest = bucket_quantile(cumulative, 1.0)
    assert highest is not None
    assert found <= highest
