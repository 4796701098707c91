"""Models that misbehave."""

import http.client
import time
from typing import Any, Final

from bench.attack.attack import Ground, Result
from bench.attack.bystander import Bystander
from bench.attack.calls import HttpCaller, body
from bench.attack.repository import MISBEHAVIOURS, TOLD, misbehaving

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
