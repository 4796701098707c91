"""Workers looked at while they serve, and a home that nobody may write to."""

import os
import time
from pathlib import Path

from bench.attack.repository import write_model
from tests.serve.conftest import Start
from tests.serve.server import Server

#: Keeps 150 MB more with each of its first requests of such a value; samples hold none.
LEAK = (
    "held = globals().setdefault('held', []); (x.max() > 1e6) and len(held) < 6 and "
    "held.append(bytearray(os.urandom(1 << 20)) * 150)"
)
SPIN = (
    "(x.max() > 1e6) and [threading.Thread(target=lambda: any(0 for _ in iter(int, 1)), "
    "daemon=True).start() for _ in range(2)]"
)


def _import(root: Path, name: str, module: str) -> None:
    file = root / name / "1/model.py"
    file.write_text(f"import {module}\n" + file.read_text())


def test_a_worker_that_holds_too_much_is_replaced_and_its_requests_answered(
    root: Path, start: Start
) -> None:
    write_model(root, "leaks", extra=LEAK)
    _import(root, "leaks", "os")
    server = start().wait_ready()
    statuses = []
    ends = time.monotonic() + 60.0
    while "replaced: it held" not in server.text and time.monotonic() < ends:
        statuses.append(server.infer("leaks", 2e6)[0])
    found = server.wait_for(r"worker \S+ of cpu0 died \(.*\): replaced: it held (\d+) MiB", 5.0)
    assert 512 < int(found[1]) < 2_000 and set(statuses) == {200}
    assert server.infer("leaks")[0] == 200


def test_a_stated_limit_holds_while_serving(root: Path, start: Start) -> None:
    write_model(root, "leaks", extra=LEAK)
    _import(root, "leaks", "os")
    file = root / "leaks/interlace.toml"
    file.write_text(file.read_text() + 'memory_limit = "200MiB"\n')
    server = start().wait_ready()
    for _ in range(4):
        assert server.infer("leaks", 2e6)[0] == 200
    server.wait_for(r"its limit is 200 MiB", 30.0)


def test_threads_that_a_model_leaves_behind_are_told_of(root: Path, start: Start) -> None:
    write_model(root, "spins", extra=SPIN)
    _import(root, "spins", "threading")
    server = start("--cores", str(min(os.sched_getaffinity(0)))).wait_ready()
    time.sleep(8.0)
    assert "nothing to do" not in server.text
    assert server.infer("spins", 2e6)[0] == 200
    server.wait_for(r"nothing to do: one of spins/1#0 left threads running", 60.0)


def test_a_home_that_cannot_be_written_to_is_no_obstacle(
    root: Path, tmp_path: Path, start: Start
) -> None:
    write_model(root, "good")
    (tmp_path / "file").write_text("")
    server: Server = start("--profiles", str(tmp_path / "file" / "profiles"))
    server.wait_ready()
    assert server.infer("good")[0] == 200
    assert "--profiles names another folder" in server.text
    assert "the profile of good could not be kept" in server.text
    assert server.end() == 0
    assert "Traceback" not in server.text
