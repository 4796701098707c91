"""Tests run on the Python sources; with --compiled, on the machine code of the hot modules."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from interlace.compiled import is_compiled, prefer_sources

# Before any other conftest imports what it tests; options are not parsed yet. Workers of xdist
# do not see the command line, but inherit the environment.
if "--compiled" in sys.argv or "TEST_COMPILED" in os.environ:
    os.environ["TEST_COMPILED"] = "1"
else:
    prefer_sources()

# Tests are not timed; all else stays as it is here, or where CI is set.
#: The same cases in each run, so that a failure is a change's and not the weather's.
settings.register_profile("same", deadline=None, derandomize=True)
#: `scripts/test all`: new cases, and so many that what one in a thousand breaks is found.
settings.register_profile("many", deadline=None, max_examples=2_000)
settings.load_profile("same")
# Hypothesis draws constants of all modules that are imported by then, too: what a test draws would
# depend on which tests its worker has run before.
if hasattr(providers, "_get_local_constants"):
    providers._get_local_constants = lambda: providers._local_constants

HERE = Path(__file__).parent
#: What a whole folder, or file, of tests needs; `scripts/test fast` leaves all of these out.
MARKS = {
    "peers": "peer",
    "serve": "process",
    "bench": "slow",
    "contracts/test_device.py": "process",
    "device/cpu": "process",
    "device/cuda": "process",
    "examples": "process",
    "formats": "process",
    "assembly": "process",
    "cli/test_bench.py": "process",
    "cli/test_further.py": "process",
    "cli/test_light_start.py": "process",
    "load/test_open_loop.py": "process",
    "profiling/cuda/test_bench.py": "process",
    "runtime/test_plan_solver.py": "process",
    "server/grpc/test_epoll_turns.py": "process",
    "server/grpc/test_epoll_loop.py": "process",
    "engine/test_launch_ahead.py": "slow",
    "sim/test_scaling.py": "slow",
    "cli/test_plan_scenario.py": "slow",
    "cli/test_simulate.py": "slow",
    "laws/test_simulator.py": "slow",
    "packing/test_widening.py": "slow",
    "policy/test_patterns.py": "slow",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--compiled"):
        for item in items:
            if item.get_closest_marker("sources"):
                item.add_marker(pytest.mark.skip(reason="runs on the sources alone"))
    marks = {HERE / place: mark for place, mark in MARKS.items()}
    for item in items:
        for place in (item.path, *item.path.parents):
            if place in marks:
                item.add_marker(marks[place])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--compiled", action="store_true", help="test the compiled hot modules")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--compiled") and not is_compiled():
        raise pytest.UsageError("nothing is compiled: python setup.py build_ext --inplace")
