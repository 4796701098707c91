"""A V100 made of what D-STACK prints, and how the rest of its latencies is filled in.

Printed is one latency a model: a batch of 16 at its knee (Table 6). The others have the shape of
the paper's own model of a DNN (equations 1 to 5): its parallelism is such that equation 6 peaks at
the knee with 16 rows, its time such that the latency there is the printed one. Starting a kernel
takes an eighth of an operation: one row then takes a quarter of 16 rows' time, as ResNet-50 does
at 40 % in the logs that the authors' earlier platform published (0.24 there).

No batch at any share is better use of the GPU than 16 rows at the knee, which is what a knee is
for: a row takes at least so much share times time. Below the knee it takes more, in proportion to
knee / share, so that latency grows with the square: section 3.1 calls it exponential without a
figure, and this is what brings every baseline of Figure 11 to its published misses. The logs have
hardly more than 1 / share there; ``steep`` is the power.

Above the knee nothing is gained: "unchanged above 30-50 %" is how section 3.1 reads Figure 2. The
published logs, of TensorRT, go on falling there (to 0.52 of it for ResNet-50 at 100 %); ``gain``
takes that in: the part of the latency at the knee that is saved at 100 %, straight between.
"""

from dataclasses import replace
from functools import cache
from math import sqrt
from typing import Final

from bench.papers.dstack.dnn import Dnn
from bench.papers.dstack.published import BATCH, TABLE_6
from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.profile import LatencyPoint, Profile

V100: Final = GPU_KINDS["v100"]
#: Share times time of a row below the knee grows with knee / share to this power.
STEEP: Final = 1.0
_KERNELS: Final = 50
#: t_np over t_p.
_START: Final = 1.0 / 8.0
_BATCHES: Final = (*range(1, 17), 32)
_WEIGHTS_BYTES: Final = 10**8


def dnn(knee_pct: float, run_ms: float, units: int = V100.units) -> Dnn:
    """Equations 1 to 5 with their peak for 16 rows at ``knee_pct`` of ``units`` SMs.

    With equations 1 and 2 summed up, E_t is in proportion to a + (x + 1/x) / 2, where x is the SMs
    over the widest kernel's operations and a is b t_np / t_p; 1 / (E_t^2 S) is then largest where
    3 x^2 + 2 a x = 1.
    """
    a = BATCH * _START
    x = (sqrt(a * a + 3.0) - a) / 3.0
    sms = knee_pct / 100.0 * units
    plain = Dnn(_KERNELS, sms / x / BATCH, 1.0, _START)
    op_ms = run_ms / plain.latency_ms(round(sms), BATCH)
    return replace(plain, op_ms=op_ms, serial_ms=op_ms * _START)


@cache
def profile(
    model: str,
    knee_pct: int,
    run_ms: float,
    gain: float = 0.0,
    kind: str = "v100",
    steep: float = STEEP,
) -> Profile:
    """Latencies of 1 to 32 rows at every share that the GPU can be cut into.

    Below the knee a row costs (knee / share) to the power ``steep`` more share times time.
    """
    gpu = GPU_KINDS[kind]
    one = dnn(knee_pct, run_ms, gpu.units)
    row_pct_ms = knee_pct * run_ms / BATCH
    points: dict[tuple[int, int], LatencyPoint] = {}
    for share in gpu.shares_pct:
        sms = max(1, round(min(share, knee_pct) * gpu.units / 100.0))
        saved = gain * max(0, share - knee_pct) / (100 - knee_pct)
        for batch in _BATCHES:
            used_pct = min(share, knee_pct)
            least_ms = row_pct_ms * batch / used_pct * (knee_pct / used_pct) ** steep
            ms = max(one.latency_ms(sms, batch), least_ms) * (1.0 - saved)
            points[batch, share] = LatencyPoint(ms, ms, ms, 1)
    return Profile(model, "table 6", kind, _WEIGHTS_BYTES, _WEIGHTS_BYTES, points)


def profiles(gain: float = 0.0, steep: float = STEEP) -> dict[str, Profile]:
    """The eight models of Table 6."""
    return {
        m: profile(m, one.knee_pct, one.run_ms, gain, steep=steep) for m, one in TABLE_6.items()
    }
