"""A GPU that is not there: the driver's contract on host memory, for tests."""

from tests.device.cuda.fake.capture import FakeCaptured, FakeCapturer
from tests.device.cuda.fake.core import H100, Ran
from tests.device.cuda.fake.driver import IMAGE, FakeDriver
from tests.device.cuda.fake.faults import Misuse

__all__ = ["H100", "IMAGE", "FakeCaptured", "FakeCapturer", "FakeDriver", "Misuse", "Ran"]
