"""All calls put to one server, which is started again when a call kills it."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import grpc

from . import grpc_record, http_record
from .grpc_cases import GrpcCase
from .http_case import SHM_BYTES, SHM_KEY, HttpCase
from .programs import Running

Answer = dict[str, Any]
Answers = dict[str, Answer]
Start = Callable[[], AbstractContextManager[Running]]
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
    return _until_dead(cases, lambda case: http_record.ask(server.http_port, case))


def _ask_grpc(server: Running, cases: Sequence[GrpcCase]) -> Answers:
    with grpc.insecure_channel(server.grpc) as channel:
        return _until_dead(cases, lambda case: grpc_record.ask(channel, case))


def _until_dead(cases: Sequence[Any], ask: Callable[[Any], Answer]) -> Answers:
    answers: Answers = {}
    for case in cases:
        answers[case.name] = ask(case)
        if answers[case.name]["status"] == 0:
            break
    return answers


def _died(server: Running) -> bool:
    """Whether the process ended; it may take a moment to fall after its last connection."""
    for _ in range(20):
        if server.process.poll() is not None:
            return True
        time.sleep(0.05)
    return False
