"""All calls put to one server, which is started again when a call kills it."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from .grpc_cases import GrpcCase
from .http_case import SHM_BYTES, SHM_KEY, HttpCase
from .http_record import ask
from .programs import CLIENT_PYTHON, Running

Answer = dict[str, Any]
Answers = dict[str, Answer]
Start = Callable[[], AbstractContextManager[Running]]
GRPC_RECORD = Path(__file__).parent / "clients" / "grpc_record.py"
CRASHED: Answer = {"status": 0, "text": "the server died"}


def record_http(start: Start, cases: Sequence[HttpCase]) -> Answers:
    """The answer of every HTTP case, by its name."""
    return _record(start, cases, _ask_http)


def record_grpc(start: Start, cases: Sequence[GrpcCase]) -> Answers:
    """The answer of every gRPC case, by its name."""
    return _record(start, cases, _ask_grpc)


@contextmanager
def _region() -> Iterator[None]:
    """The shared memory that the calls name, there for as long as they are made."""
    path = Path("/dev/shm", SHM_KEY.strip("/"))
    path.write_bytes(bytes(SHM_BYTES))
    try:
        yield
    finally:
        path.unlink()


def _record(start: Start, cases: Sequence[Any], some: Callable[[Running, Any], Answers]) -> Answers:
    """``some`` answers cases in order and stops after the first that got no answer."""
    answers: Answers = {}
    left = list(cases)
    while left:
        with _region(), start() as server:
            got = some(server, left)
            if left[len(got) - 1].name in got and got[left[len(got) - 1].name]["status"] == 0:
                got[left[len(got) - 1].name] = (
                    CRASHED if _died(server) else got[left[len(got) - 1].name]
                )
        answers.update(got)
        left = left[len(got) :]
    return answers


def _ask_http(server: Running, cases: Sequence[HttpCase]) -> Answers:
    answers: Answers = {}
    for case in cases:
        answers[case.name] = ask(server.http_port, case)
        if answers[case.name]["status"] == 0:
            break
    return answers


def _ask_grpc(server: Running, cases: Sequence[GrpcCase]) -> Answers:
    told = json.dumps([list(case) for case in cases])
    done = subprocess.run(
        [str(CLIENT_PYTHON), str(GRPC_RECORD), server.grpc],
        input=told, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines())


def _died(server: Running) -> bool:
    """Whether the process ended; it may take a moment to fall after its last connection."""
    for _ in range(20):
        if server.process.poll() is not None:
            return True
        time.sleep(0.05)
    return False
