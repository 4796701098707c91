"""Verified traffic: callers in threads whose every answer is held against what it must be."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from bench.attack.calls import BAD, GrpcCaller, HttpCaller, row
from bench.harness.load import ms
from interlace.load.open_loop import percentile


class Target(NamedTuple):
    """A model and what it multiplies by."""

    model: str
    factor: float


class Answer(NamedTuple):
    """When a call was due (seconds of the monotonic clock), how late its answer, its status."""

    due_s: float
    seconds: float
    status: str
    model: str


class Traffic:
    """Callers over HTTP and gRPC, each with one call outstanding, at a rate or as fast as can be.

    Latency counts from when a call was due, so that a server that stops answering is seen in
    every call that was due meanwhile.
    """

    def __init__(
        self,
        ports: tuple[int, int],
        targets: Sequence[Target],
        callers: tuple[int, int] = (1, 1),
        rate_rps: float = 0.0,
        seed: int = 1,
    ) -> None:
        self._ports, self._targets, self._callers = ports, targets, callers
        self._gap_s = sum(callers) / rate_rps if rate_rps else 0.0
        self._seed = seed
        self._end = threading.Event()
        self._threads: list[threading.Thread] = []
        self.answers: list[Answer] = []
        self._errors: list[Exception] = []

    def __enter__(self) -> Traffic:
        kinds = [HttpCaller] * self._callers[0] + [GrpcCaller] * self._callers[1]
        for number, kind in enumerate(kinds):
            port = self._ports[0] if kind is HttpCaller else self._ports[1]
            thread = threading.Thread(target=self._run, args=(kind(port), number), daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(60)
        if self._errors:
            raise self._errors[0]

    def _run(self, caller: HttpCaller | GrpcCaller, number: int) -> None:
        try:
            self._call(caller, number)
        except Exception as error:  # told to whoever measures: less traffic than was asked for
            self._errors.append(error)
        finally:
            caller.close()

    def _call(self, caller: HttpCaller | GrpcCaller, number: int) -> None:
        random_ = random.Random(self._seed * 1009 + number)
        due_s = time.monotonic() + random_.random() * self._gap_s
        while not self._end.is_set():
            if self._gap_s and self._end.wait(max(0.0, due_s - time.monotonic())):
                break
            due_s = due_s if self._gap_s else time.monotonic()
            target = random_.choice(self._targets)
            status = caller.ask(target.model, target.factor, row(random_))
            self.answers.append(Answer(due_s, time.monotonic() - due_s, status, target.model))
            if status in BAD:
                time.sleep(0.02)  # a server that is gone is not asked in a tight loop
            due_s += self._gap_s

    def figures(self, since_s: float = 0.0) -> dict[str, Any]:
        """Counts by status and latency of good answers of calls due since then."""
        kept = [a for a in list(self.answers) if a.due_s >= since_s]
        good = [a.seconds for a in kept if a.status == "200"]
        return {
            "calls": len(kept),
            "statuses": dict(Counter(a.status for a in kept)),
            "p50_ms": ms(percentile(good, 50)),
            "p99_ms": ms(percentile(good, 99)),
            "max_ms": ms(max(good, default=None)),
        }

    def bad(self) -> Counter[str]:
        """Answers that must never be, by kind."""
        return Counter(a.status for a in list(self.answers) if a.status in BAD)

    def first_good_after_s(self, moment_s: float, model: str = "") -> float | None:
        """Seconds from a moment to the first good answer of a call made after it."""
        ends = [
            a.due_s + a.seconds
            for a in list(self.answers)
            if a.due_s >= moment_s and a.status == "200" and a.model in (model, a.model)
        ]
        return round(min(ends) - moment_s, 3) if ends else None
