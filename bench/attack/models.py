"""Models that misbehave, and models that are loaded and unloaded."""

import http.client
import json
import random
import time
from collections import Counter
from statistics import median
from typing import Any, Final

from bench.attack.attack import OTHER, VICTIM, Ground, Result, grown
from bench.attack.bystander import Bystander
from bench.attack.calls import HttpCaller, body
from bench.attack.repository import MISBEHAVIOURS, TOLD, misbehaving
from bench.attack.stand import Stand
from bench.attack.traffic import Traffic

#: The SLO of these models is 100 ms: an answer later than this is no answer at its deadline.
_LATE_ANSWER_S: Final = 1.0


def models(ground: Ground) -> Result:
    """Each misbehaviour three times, beside a bystander; what it cost, and the way back."""
    root = ground.repository()
    names = {what: misbehaving(root, what) for what in MISBEHAVIOURS}
    stand = ground.start(root)
    result = Result(0)
    try:
        stand.wait_ready()
        with Bystander(stand) as quiet:
            time.sleep(5.0)
        result.figures["quiet"] = quiet.figures
        for what, name in names.items():
            with Bystander(stand) as beside:
                answers = [_tell(stand.http_port, name) for _ in range(3)]
                back_s = _back_s(stand.http_port, name, 60.0)
            result.tried += len(answers)
            late = sum(seconds > _LATE_ANSWER_S for _, seconds in answers)
            result.broken[f"{what}: answer after more than 1 s"] += late
            result.broken[f"{what}: model not back"] += back_s is None
            beside.blame(result.broken, f"{what}: ")
            result.figures[what] = {"answers": answers, "back_s": back_s, "beside": beside.figures}
    finally:
        result.figures["stop"] = stand.stop()
    return result


def _tell(port: int, name: str) -> tuple[Any, float]:
    """Status and seconds of the call that makes the model misbehave."""
    caller = HttpCaller(port)
    began_s = time.monotonic()
    try:
        status: Any = caller.post(f"/v2/models/{name}/infer", body([2 * TOLD, 0.0, 0.0, 0.0]))[0]
    except (OSError, http.client.HTTPException) as error:
        status = type(error).__name__
    caller.close()
    return status, round(time.monotonic() - began_s, 3)


def _back_s(port: int, name: str, limit_s: float) -> float | None:
    """Seconds until the model answers an ordinary request rightly."""
    caller, began_s = HttpCaller(port), time.monotonic()
    while time.monotonic() - began_s < limit_s:
        if caller.ask(name, 2.0, [1.0, 2.0, 3.0, 4.0]) == "200":
            caller.close()
            return round(time.monotonic() - began_s, 2)
        time.sleep(0.1)
    caller.close()
    return None


_ROUNDS: Final = 40
_NAMES: Final = 3000
#: Some far longer than a path may be, so that what is kept of each would show; 0 leads out.
_NAME_BYTES: Final = (60_000, 8_000, 190, 0)


def reloads(ground: Ground, stand: Stand) -> Result:
    """Operations succeed, requests of others are never touched, nothing grows."""
    admin = HttpCaller(stand.http_port, 120.0)
    before, took_s = stand.held(), Counter[str]()
    times: dict[str, list[float]] = {"load": [], "unload": [], "reload": []}
    result = Result(0)
    with Traffic((stand.http_port, stand.grpc_port), [OTHER], (2, 1), rate_rps=120.0) as steady:
        for _ in range(ground.count(_ROUNDS)):
            for what in ("unload", "load", "reload"):
                verb = "load" if what == "reload" else what
                began_s = time.monotonic()
                status, said = admin.post(f"/v2/repository/models/{VICTIM.model}/{verb}", b"{}")
                times[what].append(time.monotonic() - began_s)
                result.tried += 1
                if status != 200:
                    result.broken[f"{what}: {status} {said[:80]!r}"] += 1
    took_s.update(steady.bad())
    result.broken += took_s
    other = steady.figures()
    result.broken["steady model refused"] += sum(
        count for status, count in other["statuses"].items() if status not in ("200",)
    ) * (other["statuses"].get("200", 0) == 0)
    after = stand.held()
    result.figures = {
        **{f"{what}_median_s": round(median(found), 2) for what, found in times.items()},
        **other,
        **grown(before, after, *before),
    }
    return result


def names_that_never_were(ground: Ground, stand: Stand) -> Result:
    """Loads of long names without a folder: refused, and nothing is kept of them."""
    random_ = random.Random(ground.seed)
    admin = HttpCaller(stand.http_port, 60.0)
    before = stand.held()
    statuses: Counter[str] = Counter()
    for number in range(ground.count(_NAMES)):
        length = _NAME_BYTES[number % len(_NAME_BYTES)]
        name = "".join(random_.choices("abcdefghij", k=length)) if length else "../../etc"
        name = name.replace("/", "%2F")
        try:
            status, _ = admin.post(f"/v2/repository/models/{name}/load", b"{}")
            statuses[str(status)] += 1
        except (OSError, http.client.HTTPException) as error:
            statuses[type(error).__name__] += 1
    began_s = time.monotonic()
    _, index = admin.post("/v2/repository/index", b"{}")
    index_s = time.monotonic() - began_s
    after = stand.held()
    result = Result(statuses.total(), figures={"statuses": dict(statuses)})
    listed = [one["name"] for one in json.loads(index)]
    result.broken["names kept in the index"] += sum(len(n) > 100 or "/" in n for n in listed)
    result.broken["500"] += statuses["500"]
    result.broken["grown by more than 30 MB"] += after["main_pss_mb"] - before["main_pss_mb"] > 30
    result.figures |= {
        "index_bytes": len(index),
        "index_ms": round(index_s * 1e3, 1),
        **grown(before, after, "main_pss_mb"),
    }
    return result
