"""GPU processes from a fork server: those of `tests/device/cuda` all are."""

import signal
import subprocess
import sys

import pytest


def test_a_process_ends_with_the_one_that_asked_for_it() -> None:
    owner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    code = "import sys; from bench.gpu.forking import end_with; end_with(int(sys.argv[1]))"
    worker = subprocess.Popen([sys.executable, "-c", code, str(owner.pid)])
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(1.0)
    owner.kill()
    owner.wait(20)
    assert worker.wait(20) == -signal.SIGKILL
