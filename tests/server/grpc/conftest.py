"""A gRPC server over an echo, one for all tests of this folder that do not break it."""

from collections.abc import Iterator

import pytest

from tests.server.grpc.fakes import Main


@pytest.fixture(scope="package")
def shared() -> Iterator[Main]:
    with Main() as main:
        yield main


@pytest.fixture
def echo(shared: Main) -> Iterator[Main]:
    """The shared server; afterwards nothing of the test may be left in it."""
    shared.plane.calls.clear()
    yield shared
    shared.settled()
