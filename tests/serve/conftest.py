"""Whole servers for a test: a repository, a cache shared by all, and a start."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.serve.server import Server

Start = Callable[..., Server]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Profiles and weights, kept between the starts of one test run."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


@pytest.fixture
def start(root: Path, cache: Path) -> Iterator[Start]:
    """Starts servers on ``root``; every one is gone when the test ends."""
    servers: list[Server] = []

    def begin(*options: str) -> Server:
        servers.append(Server(root, cache, *options))
        return servers[-1]

    yield begin
    for server in servers:
        server.kill()
