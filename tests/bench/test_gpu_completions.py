"""The way of completion that the server is compared with keeps the same contract as its own."""

from __future__ import annotations

from functools import partial

import pytest

from bench.gpu import completions as ways
from tests.device.cuda.completion.test_contract import *  # noqa: F403
from tests.device.cuda.completion.test_contract import Way


@pytest.fixture(params=["callback"])
def way(request: pytest.FixtureRequest) -> Way:
    return Way(request.param, partial(ways.completions, request.param))
