"""Nodes killed, stopped and cut off under load: real processes, answers checked.

Each time the node that serves most is lost: its process killed, stopped, or its packets dropped.
Noticed: its requests are tried elsewhere. Stands elsewhere: it is planned for no more, and
the others have loaded all models. As planned: they have what a plan without it says. Back: it
has loaded its part of a new plan, after it was started, went on, or was connected again. Every
request carries other data, and its answer is compared.
"""

from __future__ import annotations

import http.client
import json
import re
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from pathlib import Path
from statistics import median_high
from typing import Annotated, Any

import numpy as np

from bench.fleet.apart import ApartFleet, following, own_network
from bench.fleet.stands import MODELS
from bench.harness import Report, Table, main
from interlace.core.user_errors import UserError
from interlace.device.simulated.answers import request_digest

_MODELS = ("one", "another")  #: both of the form of `tagger`, whose answers tell whose they are
_PATIENCE_S = 90.0
_MEASURED = {
    "noticed": "noticed_ms",
    "stands elsewhere": "elsewhere_ms",
    "as planned": "planned_ms",
    "back": "back_ms",
}


def kills(
    *,
    times: int = 50,
    nodes: int = 3,
    callers: Annotated[int, "that ask one after another, each"] = 4,
    slo_ms: Annotated[float, "of both models"] = 1000.0,
) -> Report:
    """What became of nodes, and of requests."""
    own_network()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        _copy_models(folder / "models", slo_ms)
        fleet = ApartFleet(folder, nodes)
        load = _Load(callers, slo_ms)
        try:
            _until(lambda: fleet.follow_the_plan() == fleet.nodes.keys())
            load.start()
            _until(lambda: load.outcomes["right"] > 50)
            found = [_lose(fleet, kind) for kind in islice(cycle(("die", "hang", "cut")), times)]
        except UserError:
            print(*(path.read_text()[-2000:] for path in folder.glob("*.log")), sep="\n")
            raise
        finally:
            load.stop()
            fleet.close()
    return _report(found, load)


@dataclass(frozen=True, slots=True)
class _Loss:
    """In ms after the loss; ``noticed_ms`` is ``None`` where the node had no request.

    ``back_ms`` is after the node came back.
    """

    kind: str
    noticed_ms: float | None
    elsewhere_ms: float
    planned_ms: float
    back_ms: float


def _lose(fleet: ApartFleet, kind: str) -> _Loss:
    """Lose the node with most models, have it back, and wait until all stands again."""
    having = {name: len(one["assigned"]["models"]) for name, one in fleet.status()["nodes"].items()}
    name = max(having, key=lambda one: (having[one], one))
    before, noticed_ms, elsewhere_ms = fleet.lost(), None, None
    fleet.nodes[name].lose(kind)
    began_s = time.monotonic()
    while True:
        passed_ms = (time.monotonic() - began_s) * 1000.0
        if noticed_ms is None and fleet.lost() > before:
            noticed_ms = passed_ms
        at = fleet.status()
        if _stands_without(name, at):
            elsewhere_ms = elsewhere_ms or passed_ms
            if not at["planning"]:
                break
        if passed_ms > _PATIENCE_S * 1000.0:
            raise UserError(f"{name}, lost by {kind}, was not replanned: {at}")
        time.sleep(0.02)
    came_s = time.monotonic()
    fleet.nodes[name].come_back(kind)
    _until(lambda: fleet.follow_the_plan() == fleet.nodes.keys())
    back_ms = (time.monotonic() - came_s) * 1000.0
    return _Loss(kind, noticed_ms, elsewhere_ms, passed_ms, back_ms)


def _stands_without(name: str, status: Any) -> bool:
    """Whether the other nodes have loaded what they were told, which is all models."""
    told = {node: one["assigned"] for node, one in status["nodes"].items()}
    served = {model for one in told.values() if one for model in one["models"]}
    lost = told.pop(name) is None
    return lost and served >= set(_MODELS) and told.keys() <= following(status)


@dataclass(slots=True)
class _Load:
    """Callers, and what became of their requests: right, late, wrong, refused, or no answer."""

    callers: int
    slo_ms: float
    outcomes: Counter[str] = field(default_factory=Counter)
    worst_ms: float = 0.0  #: of right answers
    reasons: Counter[str] = field(default_factory=Counter)
    _ending: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Ask from now on."""
        self._threads = [threading.Thread(target=self._ask, args=(n,)) for n in range(self.callers)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Wait for the last answers."""
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, number: int) -> None:
        model, serial = _MODELS[number % len(_MODELS)], 0
        while not self._ending.is_set():
            serial += 1
            body, expected = _request(model, number * 1_000_000 + serial)
            began_s = time.monotonic()
            status, answer = _post(model, body)
            took_ms = (time.monotonic() - began_s) * 1000.0
            with self._lock:
                self._count(status, answer, expected, took_ms)
            time.sleep(0.02 if status == 503 else 0.005)

    def _count(self, status: int, answer: bytes, expected: str, took_ms: float) -> None:
        if status == 200:
            right = expected in answer.decode()
            late = took_ms > self.slo_ms
            self.outcomes["wrong" if not right else "late" if late else "right"] += 1
            self.worst_ms = max(self.worst_ms, took_ms)
        elif status:
            self.outcomes["refused"] += 1
            self.reasons[re.sub(r"\d[\d.]*", "N", answer.decode())[:160]] += 1
        else:
            self.outcomes["without an answer"] += 1
            self.reasons[answer.decode()] += 1


def _request(model: str, value: int) -> tuple[bytes, str]:
    """A body, and the digest that answers it."""
    data = np.full(16, value, np.float32)
    sent = {"name": "features", "datatype": "FP32", "shape": [1, 16], "data": data.tolist()}
    digest = request_digest(model, [("features", data.tobytes())]).hex()
    return json.dumps({"inputs": [sent]}).encode(), digest


def _post(model: str, body: bytes) -> tuple[int, bytes]:
    """Status and body; 0 and why where there is no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", 8000, timeout=30.0)
    try:
        connection.request("POST", f"/v2/models/{model}/infer", body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException) as error:
        return 0, repr(error).encode()
    finally:
        connection.close()


def _copy_models(models: Path, slo_ms: float) -> None:
    for name in _MODELS:
        made = Path(shutil.copytree(MODELS / "tagger", models / name)) / "interlace.toml"
        made.write_text(re.sub("slo_ms = .*", f"slo_ms = {slo_ms:g}", made.read_text()))


def _until(what: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            if what():
                return
        except (OSError, TypeError, KeyError):
            pass  # it does not listen yet
        if time.monotonic() > ends_s:
            raise UserError(f"it did not come to pass within {_PATIENCE_S:g} s")
        time.sleep(0.05)


def _report(found: list[_Loss], load: _Load) -> Report:
    cells: list[list[str | float | int | None]] = []
    for kind in sorted({one.kind for one in found}):
        of_kind = [asdict(one) for one in found if one.kind == kind]
        known = (
            [one[key] for one in of_kind if one[key] is not None] for key in _MEASURED.values()
        )
        cells.append([kind, len(of_kind), *(x for ms in known for x in _middle_and_most(ms))])
    heads = ["lost by", "times", *(x for one in _MEASURED for x in (f"{one}, median ms", "most"))]
    requests = Table(
        ["became", "requests"], [[name, count] for name, count in sorted(load.outcomes.items())]
    )
    reasons = Table(["refused since", "requests"], [[w, n] for w, n in load.reasons.most_common(8)])
    broken = [
        f"{load.outcomes[name]} requests: {name}"
        for name in ("wrong", "without an answer")
        if load.outcomes[name]
    ]
    figures = {
        "outcomes": dict(load.outcomes),
        "worst_ms": load.worst_ms,
        "losses": [asdict(one) for one in found],
    }
    return Report(tables=[Table(heads, cells), requests, reasons], figures=figures, broken=broken)


def _middle_and_most(values: list[float]) -> list[float | None]:
    return [round(median_high(values)), round(max(values))] if values else [None, None]


if __name__ == "__main__":
    main(kills)
