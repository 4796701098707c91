"""Tests run on the Python sources; with --compiled, on the machine code of the hot modules."""

from __future__ import annotations

import pytest

from interlace.compiled import is_compiled, prefer_sources


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--compiled", action="store_true", help="test the compiled hot modules")


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--compiled"):
        prefer_sources()
    elif not is_compiled():
        raise pytest.UsageError("nothing is compiled: python setup.py build_ext --inplace")
