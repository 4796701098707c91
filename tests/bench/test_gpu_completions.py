"""The ways of completion that the server is compared with keep the same contract as its own."""

from __future__ import annotations

from functools import partial

import pytest

from bench.gpu.completions import kinds
from tests.device.cuda.completion.test_contract import *  # noqa: F403
from tests.device.cuda.completion.test_contract import Way


@pytest.fixture(params=["sweep", "callback"])
def way(request: pytest.FixtureRequest) -> Way:
    return Way(request.param, partial(kinds.completions, request.param))
