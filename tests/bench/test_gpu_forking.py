"""GPU processes from a fork server."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from bench.gpu.bench import Bench
from bench.gpu.child import Children, Errand
from bench.gpu.rows import Row, seen
from tests.device.cuda.rig import cuda_rig
from tests.device.models import model

DOUBLE, ROW, TWICE = model("double"), [1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 6.0, 8.0]


def test_a_process_ends_with_the_one_that_asked_for_it() -> None:
    owner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    code = "import sys; from bench.gpu.forking import _end_with; _end_with(int(sys.argv[1]))"
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


def grandchild(bench: Bench) -> Iterator[Row]:
    context = get_context("forkserver")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_send_parent, args=(theirs,))
    child.start()
    yield seen("parents", str(ours.recv() == os.getppid()))
    child.join()


def _send_parent(pipe: Connection) -> None:
    pipe.send(os.getppid())


def test_a_parts_processes_come_from_the_server_that_the_part_came_from(tmp_path: Path) -> None:
    children = Children()
    entry = "tests.bench.test_gpu_forking:grandchild"
    errand = Errand(entry, "", False, tmp_path, tmp_path / "log", 100.0)
    found = list(children.rows(errand))
    assert [row.found for row in found] == ["True"], found
