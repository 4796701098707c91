"""A gRPC front-end over an echo, one for all tests of this folder that do not break it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from interlace.server.door.life import DoorSettings
from tests.server.grpc.fakes import Main


@pytest.fixture(scope="package", params=[False, True], ids=["process", "inside"])
def shared(request: pytest.FixtureRequest) -> Iterator[Main]:
    """In a process of its own, and inside of the main process."""
    with Main(DoorSettings(port=0, arena_bytes=64 << 20, inside=request.param)) as main:
        yield main


@pytest.fixture
def echo(shared: Main) -> Iterator[Main]:
    """The shared front-end; afterwards nothing of the test may be left in it."""
    shared.plane.calls.clear()
    yield shared
    shared.settled()
