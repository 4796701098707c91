"""A fake GPU, and devices on it; closing them fails the test if anything is left over."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.device.cpu.rig import Rig
from tests.device.cuda.fake.driver import FakeDriver
from tests.device.cuda.rig import cuda_rig

MakeRig = Callable[..., Rig]


@pytest.fixture
def driver() -> Iterator[FakeDriver]:
    driver = FakeDriver()
    yield driver
    driver.close()


@pytest.fixture
def make_rig() -> Iterator[MakeRig]:
    """Devices of a mechanism, with settings of their own."""
    with ExitStack() as stack:

        def make(mechanism: str = "green", **changes: object) -> Rig:
            made = cuda_rig(mechanism, **changes)
            stack.callback(made.close)
            return made

        yield make
