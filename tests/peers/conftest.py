"""Servers to talk to: Interlace on a repository of tiny models, and the real tritonserver."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from . import programs
from .oracle import triton_start
from .pages import ours_start
from .programs import Running
from .record import Start


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("peers")


@pytest.fixture(scope="session")
def start_ours(folder: Path) -> Start:
    """How to start Interlace on the tiny repository; profiles are kept between starts."""
    return ours_start(folder)


@pytest.fixture(scope="session")
def ours(start_ours: Start) -> Iterator[Running]:
    with start_ours() as server:
        yield server


@pytest.fixture(scope="session")
def perf_analyzer() -> Path:
    if not programs.PERF_ANALYZER.exists():
        pytest.skip(f"no perf_analyzer in {programs.HOME}: {programs.HOW}")
    return programs.PERF_ANALYZER


@pytest.fixture(scope="session")
def start_triton(folder: Path) -> Start:
    """How to start the real tritonserver on the same models."""
    if not (programs.HOME / "tritonserver" / ".done").exists():
        pytest.skip(f"no tritonserver in {programs.HOME}: {programs.HOW}")
    return triton_start(folder)
