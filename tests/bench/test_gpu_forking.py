"""GPU processes from a fork server."""

import signal
import subprocess
import sys

import pytest

from tests.device.cuda.rig import cuda_rig
from tests.device.models import model

DOUBLE, ROW, TWICE = model("double"), [1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 6.0, 8.0]


def test_a_process_ends_with_the_one_that_asked_for_it() -> None:
    owner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    code = "import sys; from bench.gpu.forking import end_with; end_with(int(sys.argv[1]))"
    worker = subprocess.Popen([sys.executable, "-c", code, str(owner.pid)])
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(1.0)
    owner.kill()
    owner.wait(20)
    assert worker.wait(20) == -signal.SIGKILL


def test_forked_processes_serve() -> None:
    rig = cuda_rig("mps")
    try:
        for name in ("p", "q"):
            assert rig.carve(name).failure is None
            assert rig.load(DOUBLE, name).failure is None
            assert rig.values(rig.run(rig.floats(DOUBLE, ROW), name=name)) == [[TWICE]]
    finally:
        rig.close()
