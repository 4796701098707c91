"""Metrics of models' code: one family of each name, whoever counts in it."""

from prometheus_client.parser import text_string_to_metric_families

from interlace.core.metric_change import MetricChange
from interlace.server.custom_metrics import SERIES_MAX, CustomMetrics
from interlace.server.statistics import MetricsPage


def shown(metrics: CustomMetrics) -> dict[tuple[str, str], float]:
    """Values by name and first label."""
    page = MetricsPage()
    metrics.add_to(page)
    families = text_string_to_metric_families(page.text())
    samples = [sample for family in families for sample in family.samples]
    return {(one.name, "".join(one.labels.values())): one.value for one in samples}


def test_workers_count_together_and_a_gauge_has_the_last_value() -> None:
    metrics = CustomMetrics()
    labels = (("kind", 'a"\n'),)
    for added in (2.0, 3.0):
        metrics.apply([
            MetricChange("calls_total", "Calls", "counter", labels, added),
            MetricChange("level", "", "gauge", (), added, value=10.0 * added),
            MetricChange("took", "", "histogram", (), added, bounds=(1.0,), counts=(1, 2)),
        ])  # fmt: skip
    assert shown(metrics) == {
        ("calls_total", 'a"\n'): 5.0,
        ("level", ""): 33.0,
        ("took_bucket", "1"): 2.0,
        ("took_bucket", "+Inf"): 6.0,
        ("took_sum", ""): 5.0,
        ("took_count", ""): 6.0,
    }


def test_what_contradicts_or_is_too_much_is_left_out(caplog: object) -> None:
    metrics = CustomMetrics()
    metrics.apply([MetricChange("a_total", "", "counter", (), 1.0)])
    metrics.apply([
        MetricChange("a_total", "", "gauge", (), 1.0),
        MetricChange("nv_inference_count", "", "counter", (), 1.0),
    ])  # fmt: skip
    assert shown(metrics) == {("a_total", ""): 1.0}
    series = [MetricChange("b", "", "gauge", (("n", str(n)),), 1.0) for n in range(SERIES_MAX + 9)]
    metrics.apply(series)
    assert len(shown(metrics)) == SERIES_MAX
