"""What is logged of workers that do not start."""

import logging

import pytest

from interlace.control.workers import WorkerDeathObserver
from interlace.core.messages import CreatePartition, Failure, WorkFinished


def test_why_a_partition_cannot_be_begun_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """It is tried again and again, and nothing else would say why no model of it serves."""
    observer, work = WorkerDeathObserver(), CreatePartition("cpu0", "cpu0.p1", 50)
    with caplog.at_level(logging.ERROR):
        for detail in ("no memory", "no memory", "no such core"):
            observer(0.0, WorkFinished(work, failure=Failure(detail)), ())
    assert caplog.messages == [
        f"partition cpu0.p1 of cpu0 cannot be begun: {why}" for why in ("no memory", "no such core")
    ]
