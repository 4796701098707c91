"""All calls put to one server, which is started again when a call kills it."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import grpc

from . import grpc_record, http_record
from .grpc_cases import GrpcCase, grpc_cases
from .http_case import SHM_BYTES, SHM_KEY, HttpCase
from .http_cases import http_cases
from .programs import Running

Answer = dict[str, Any]
Answers = dict[str, Answer]
Start = Callable[[], AbstractContextManager[Running]]
CRASHED: Answer = {"status": 0, "text": "the server died"}
#: Loads what the gRPC calls have unloaded. Its answer is not kept.
_AGAIN = HttpCase("", "POST", "/v2/repository/models/spare/load", b"{}")


def record(start: Start) -> Answers:
    """The answer of every call, by ``http:`` or ``grpc:`` and its name; those by HTTP first."""
    left: list[GrpcCase | HttpCase] = [*grpc_cases(), _AGAIN, *http_cases()]
    answers: Answers = {}
    while left:
        with _region(), start() as server, grpc.insecure_channel(server.grpc) as channel:
            answer: Answer = {"status": None}
            while left and answer["status"] != 0:
                case = left.pop(0)
                if isinstance(case, GrpcCase):
                    name, answer = f"grpc:{case.name}", grpc_record.ask(channel, case)
                else:
                    name, answer = f"http:{case.name}", http_record.ask(server.http_port, case)
                answers[name] = answer
            if answer["status"] == 0 and _died(server):
                answers[name] = CRASHED
    del answers[f"http:{_AGAIN.name}"]
    return dict(sorted(answers.items(), key=lambda item: item[0].startswith("grpc:")))


@contextmanager
def _region() -> Iterator[None]:
    """The shared memory that the calls name, there for as long as they are made."""
    path = Path("/dev/shm", SHM_KEY.strip("/"))
    path.write_bytes(bytes(SHM_BYTES))
    try:
        yield
    finally:
        path.unlink()


def _died(server: Running) -> bool:
    """Whether the process ended; it may take a moment to fall after its last connection."""
    for _ in range(20):
        if server.process.poll() is not None:
            return True
        time.sleep(0.05)
    return False
