"""More requests than can be served."""

import time
from typing import Any

from bench.attack.attack import SLOW, Ground, Result, grown
from bench.attack.calls import body
from bench.attack.stand import Stand
from bench.attack.traffic import Traffic
from bench.harness.closed_loop import closed_loop
from bench.harness.load import figures, goodput_rps, ms, poisson
from interlace.load.connections import Call
from interlace.load.open_loop import LoadRun, OpenLoop, percentile

_SLO_MS = 100.0
_CONNECTIONS = 300


def overload(ground: Ground, stand: Stand) -> Result:
    """Goodput keeps most of the peak; refusals are quick; the first good answer comes at once."""
    data = body([1.0, 2.0, 3.0, 4.0])
    wire = Call(stand.http_port, f"/v2/models/{SLOW.model}/infer", data)
    call = wire.encoded()
    peak_rps = float(figures(closed_loop(call, 8, ground.scale * 5.0, 1.0))["rps"])
    result = Result(0, figures={"peak_rps": peak_rps})
    before = stand.held()
    for factor in (2.0, 10.0):
        seconds = ground.scale * 12.0
        arrivals = poisson([peak_rps * factor], seconds, ground.seed)
        run = OpenLoop([call], arrivals, _CONNECTIONS).run(10.0)
        ended_s = time.monotonic()
        result.tried += len(run.samples)
        found = _figures(run, peak_rps, seconds)
        found["back_s"] = _back_s(stand, ended_s)
        result.figures[f"x{factor:g}"] = found
        result.broken["unanswered"] += found["unanswered"]
    result.figures |= grown(before, stand.held(), "pss_mb")
    return result


def _figures(run: LoadRun, peak_rps: float, seconds: float) -> dict[str, Any]:
    good = [s.latency_s for s in run.samples if s.status == 200]
    refused = [s.latency_s for s in run.samples if s.status in (429, 503, 504)]
    return {
        "goodput_of_peak": round(goodput_rps(run.samples, _SLO_MS, seconds) / peak_rps, 3),
        "accepted_p99_ms": ms(percentile(good, 99)),
        "refusal_p50_ms": ms(percentile(refused, 50)),
        "refusal_p99_ms": ms(percentile(refused, 99)),
        "unanswered": sum(s.status < 0 for s in run.samples),
    }


def _back_s(stand: Stand, ended_s: float) -> float | None:
    """Seconds to the first good answer after the load has ended."""
    with Traffic((stand.http_port, 0), [SLOW], (1, 0)) as traffic:
        while traffic.first_good_after_s(ended_s) is None and time.monotonic() - ended_s < 20:
            time.sleep(0.01)
    return traffic.first_good_after_s(ended_s)
