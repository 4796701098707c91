"""Reading metrics back: values, labels, quantiles of histograms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.cli.top import bucket_quantile, read_metrics

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
