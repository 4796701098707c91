"""Bodies that are long to read: JSON of millions of numbers, and gzip that unpacks to more."""

import gzip
import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from bench.attack.attack import WIDE, WIDE_NUMBERS, Ground, Result, grown
from bench.attack.calls import HttpCaller
from bench.attack.stand import Stand

_GIVEN_BACK_S: Final = 90.0
_KEPT_MB: Final = 80.0


class Body(NamedTuple):
    """A body to be sent again and again over some connections at once, and what it deserves.

    Where there is too much at once, 429 and 503 are right for all of them.
    """

    data: bytes
    encoding: str
    connections: int
    status: int


def large_json(ground: Ground, stand: Stand) -> Result:
    """15.9 MB of numbers, more than the input takes, over one and four connections."""
    numbers = b",".join([b"1"] * 8_000_000)
    wrong = _named(numbers[:15_900_000].rstrip(b","), [1, WIDE_NUMBERS])
    return _send(ground, stand, [Body(wrong, "", 1, 400), Body(wrong, "", 4, 400)])


def honest_json(ground: Ground, stand: Stand) -> Result:
    """One row of 614,400 numbers in 6 MB of JSON, which is served, over one connection."""
    right = _named(b",".join([b"0.1234567"] * WIDE_NUMBERS), [1, WIDE_NUMBERS])
    return _send(ground, stand, [Body(right, "", 1, 200)])


def gzip_bombs(ground: Ground, stand: Stand) -> Result:
    """58 KB that unpack to 60 MB over four connections; 243 KB to 250 MB over thirty-two."""
    small = gzip.compress(_named(b"1" + b" " * 60_000_000, [1, WIDE_NUMBERS]), 9)
    large = gzip.compress(_named(b"1" + b" " * 250_000_000, [1, WIDE_NUMBERS]), 9)
    return _send(ground, stand, [Body(small, "gzip", 4, 413), Body(large, "gzip", 32, 413)])


def _named(numbers: bytes, shape: list[int]) -> bytes:
    head = b'{"inputs":[{"name":"x","datatype":"FP32","shape":%s,"data":['
    return head % json.dumps(shape).encode() + numbers + b"]}]}"


def _send(ground: Ground, stand: Stand, bodies: Sequence[Body]) -> Result:
    before = stand.held()
    statuses: Counter[str] = Counter()
    for one in bodies:
        end_s = time.monotonic() + ground.scale * 8.0
        _at_once(one.connections, partial(_repeat, stand, one, end_s, statuses))
    given_back_s, after = _given_back_s(stand, before), stand.held()
    result = Result(statuses.total(), figures={"statuses": dict(statuses)})
    right = {*(str(one.status) for one in bodies), "413", "429", "503", "504"}
    for status, count in statuses.items():
        result.broken[status] += count * (status.isdigit() and status not in right)
    result.broken["kept after a minute and a half"] += given_back_s is None
    result.figures |= grown(before, after, "pss_mb")
    result.figures["given_back_s"] = given_back_s
    return result


def _given_back_s(stand: Stand, before: dict[str, float]) -> float | None:
    """Seconds until the server holds about what it held before; the process for bodies may stay."""
    began_s = time.monotonic()
    while (gone_s := time.monotonic() - began_s) < _GIVEN_BACK_S:
        if stand.held()["pss_mb"] - before["pss_mb"] < _KEPT_MB:
            return round(gone_s, 1)
        time.sleep(1.0)
    return None


def _repeat(stand: Stand, one: Body, end_s: float, statuses: Counter[str]) -> None:
    caller = HttpCaller(stand.http_port, 60.0)
    headers = {"Content_Encoding": one.encoding} if one.encoding else {}
    while time.monotonic() < end_s:
        try:
            status, _ = caller.post(f"/v2/models/{WIDE.model}/infer", one.data, **headers)
            statuses[str(status)] += 1
        except (OSError, http.client.HTTPException) as error:
            # Answered and closed before all of it was sent, which is a refusal too.
            statuses[type(error).__name__] += 1
    caller.close()


def _at_once(count: int, act: Callable[[], None]) -> None:
    threads = [threading.Thread(target=act, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
