"""What tests of benchmarks share."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.harness.command import show
from bench.harness.report import Report

Drawn = Callable[[Report], Report]
_LARGEST_BYTES = 120_000


@pytest.fixture
def drawn(tmp_path: Path) -> Drawn:
    """Shows a report as its command does: pictures are there, and no burden to keep."""

    def show_it(report: Report) -> Report:
        show(report, "report", tmp_path)
        sizes = [(tmp_path / f"report{one.suffix}").stat().st_size for one in report.pictures]
        assert all(1_000 < size < _LARGEST_BYTES for size in sizes)
        return report

    return show_it
