"""Fixtures of the device tests."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.device.cpu.rig import Rig, settings

MakeRig = Callable[..., Rig]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One device for a whole module: tests name their own partitions and release them."""
    made = Rig(settings(tmp_path_factory.mktemp("weights")))
    yield made
    made.close()


@pytest.fixture
def make_rig(tmp_path: Path) -> Iterator[MakeRig]:
    """Devices with settings of their own."""
    with ExitStack() as stack:

        def make(**changes: object) -> Rig:
            made = Rig(settings(tmp_path, **changes))
            stack.callback(made.close)
            return made

        yield make
