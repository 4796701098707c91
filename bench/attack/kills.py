"""Processes of the server killed and stopped under verified traffic."""

import os
import random
import signal
import time
from contextlib import suppress
from statistics import median
from typing import Final

from bench.attack.attack import OTHER, VICTIM, Ground, Result, grown
from bench.attack.calls import HttpCaller, row
from bench.attack.stand import Stand
from bench.attack.traffic import Traffic

_WORKER_KILLS: Final = 30
_GAP_S: Final = 3.0


def workers(ground: Ground, stand: Stand) -> Result:
    """kill -9 of random workers: nothing lost, nothing wrong, back soon, nothing kept for ever."""
    random_ = random.Random(ground.seed)
    before = stand.held()
    back_s: list[float] = []
    ports = (stand.http_port, stand.grpc_port)
    with Traffic(ports, [VICTIM, OTHER], (3, 2), rate_rps=250.0) as traffic:
        time.sleep(1.0)
        for _ in range(ground.count(_WORKER_KILLS)):
            alive = stand.workers()
            if alive:
                _send(random_.choice(alive), signal.SIGKILL)
            moment_s = time.monotonic()
            time.sleep(_GAP_S)
            back = traffic.first_good_after_s(moment_s)
            back_s.append(_GAP_S if back is None else back)
        refused = _unready(stand)
        returned_s = _all_ready_s(stand, 90.0)
    after = stand.held()
    broken = traffic.bad()
    if returned_s is None:
        broken["models not back"] += 1
    return Result(
        len(back_s),
        broken,
        {
            **traffic.figures(),
            "back_median_s": round(median(back_s), 3),
            "back_worst_s": max(back_s),
            "set_aside_at_the_end": refused,
            "all_ready_again_s": returned_s,
            **grown(before, after, "pss_mb", "main_pss_mb", "main_descriptors"),
        },
    )


def fork_server(ground: Ground, stand: Stand) -> Result:
    """kill -9 of the process that workers are forked from, then of a worker."""
    with Traffic((stand.http_port, stand.grpc_port), [VICTIM], (2, 1), rate_rps=100.0) as traffic:
        for _ in range(ground.count(2)):
            _send(stand.fork_server_pid(), signal.SIGKILL)
            time.sleep(1.0)
            _send(stand.workers()[0], signal.SIGKILL)
            time.sleep(4.0)
        moment_s = time.monotonic()
        time.sleep(2.0)
    broken = traffic.bad()
    if traffic.first_good_after_s(moment_s) is None:
        broken["not back"] += 1
    return Result(2, broken, traffic.figures())


def stopped_worker(ground: Ground, stand: Stand) -> Result:
    """SIGSTOP of all workers while a request runs: 504 at its deadline, then new workers."""
    random_ = random.Random(ground.seed)
    caller = HttpCaller(stand.http_port)
    answers: list[tuple[str, float]] = []
    gone_s: list[float] = []
    for _ in range(ground.count(3)):
        time.sleep(2.0)
        caller.ask(VICTIM.model, VICTIM.factor, row(random_))
        stopped = stand.workers()
        for pid in stopped:
            _send(pid, signal.SIGSTOP)
        began_s = time.monotonic()
        status = caller.ask(VICTIM.model, VICTIM.factor, row(random_))
        answers.append((status, round(time.monotonic() - began_s, 3)))
        gone_s.append(_until_gone_s(stopped, 40.0))
        for pid in stopped:
            _send(pid, signal.SIGCONT)
    result = Result(len(answers), figures={"answers": answers, "first_replaced_s": gone_s})
    result.broken["answered after more than 1 s"] += sum(s > 1.0 for _, s in answers)
    result.broken["not replaced within 10 s"] += sum(s > 10.0 for s in gone_s)
    result.broken["hung, lost or wrong"] += sum(a in ("hung", "lost", "wrong") for a, _ in answers)
    return result


def _until_gone_s(pids: list[int], limit_s: float) -> float:
    """Seconds until one of these processes has been replaced."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < limit_s:
        if not all(_alive(pid) for pid in pids):
            return round(time.monotonic() - began_s, 2)
        time.sleep(0.05)
    return limit_s


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _unready(stand: Stand) -> list[str]:
    """Models whose readiness is not 200."""
    names = ("bystander", VICTIM.model, OTHER.model)
    return [name for name in names if stand.get(f"/v2/models/{name}/ready")[0] != 200]


def _all_ready_s(stand: Stand, limit_s: float) -> float | None:
    began_s = time.monotonic()
    while time.monotonic() - began_s < limit_s:
        if not _unready(stand):
            return round(time.monotonic() - began_s, 2)
        time.sleep(0.2)
    return None
