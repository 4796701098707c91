"""What D-STACK prints, a V100 made of that, and how the rest of its latencies is filled in.

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

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import sqrt
from typing import Final, NamedTuple

from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.profile import LatencyPoint, Profile


class Printed(NamedTuple):
    """A row of Table 6: knee in %, SLO in ms, runtime in ms of a batch of 16 at the knee."""

    knee_pct: int
    slo_ms: float
    run_ms: float


#: Table 6.
TABLE_6: Final[Mapping[str, Printed]] = {
    "mobilenet": Printed(20, 25.0, 10.0),
    "alexnet": Printed(30, 25.0, 8.0),
    "bert": Printed(30, 25.0, 9.0),
    "resnet50": Printed(40, 50.0, 28.0),
    "vgg19": Printed(50, 100.0, 55.0),
    "resnet18": Printed(30, 25.0, 12.0),
    "inception": Printed(40, 50.0, 25.0),
    "resnext50": Printed(50, 100.0, 40.0),
}
BATCH: Final = 16

#: Table 1: seconds for 10,000 images of each of four models.
TABLE_1_S: Final = {"triton": 58.61, "dstack": 35.59}
#: Figure 9a to 9c: mean use of the GPU in %, from the text of section 6.1.
FIGURE_9_PCT: Final = {"temporal": 44.0, "dstack-plain": 60.0, "dstack": 74.0}
#: Figure 10a in words: D-STACK's throughput over temporal sharing's.
OVER_TEMPORAL: Final = {"alexnet": 4.0, "mobilenet": 4.0, "resnet50": 2.0, "vgg19": 2.0}
#: Figure 10a in words: at least this part of max-throughput's Alexnet.
OF_MAX_THROUGHPUT: Final = 0.8
#: Section 7: requests per second offered in C-2 to C-4, where they are given, and in C-7.
FEW_RPS: Final = {"alexnet": 700.0, "mobilenet": 700.0, "resnet50": 320.0, "vgg19": 160.0}
SEVEN_RPS: Final = {
    **dict.fromkeys(("alexnet", "mobilenet", "resnet18"), 440.0),
    **dict.fromkeys(("resnet50", "inception"), 220.0),
    **dict.fromkeys(("resnext50", "vgg19"), 80.0),
}
#: Section 7 on C-7: requests missed in %, D-STACK's and at least the others'; use; gain in words.
SEVEN_MISSED_PCT: Final = {"dstack": 10.0, "others": 68.0}
SEVEN_USED_PCT, SEVEN_GAIN = 92.0, 3.0
#: Figure 11b in words: use in % in each of its sessions.
FIGURE_11B_PCT: Final = 85.0
#: Section 7.1: D-STACK's throughput over temporal sharing's on four T4s ("160 % higher").
CLUSTER_GAIN: Final = 2.6


@dataclass(frozen=True, slots=True)
class Dnn:
    """A DNN of ``kernels`` kernels in sequence (D-STACK section 4.3, Table 4).

    The first has ``parallelism`` operations (p) for one row, each next p / Kmax fewer.
    ``op_ms`` is t_p, ``serial_ms`` t_np. Every kernel runs once (R_i = 1).
    """

    kernels: int
    parallelism: float
    op_ms: float
    serial_ms: float

    def latency_ms(self, sms: int, batch: int = 1) -> float:
        """E_t: the time of one batch on that many SMs (equations 1, 2, 4 and 5).

        Raises:
            ValueError: fewer than one SM, or fewer than one row.
        """
        if sms < 1 or batch < 1:
            raise ValueError(f"a DNN runs on at least 1 SM and 1 row, not {sms} and {batch}")
        first = self.parallelism * batch
        wides = [first * (self.kernels - index) / self.kernels for index in range(self.kernels)]
        parallel_ms = sum(wide * self.op_ms / max(1.0, min(sms, wide)) for wide in wides)
        return batch * self.kernels * self.serial_ms + parallel_ms


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
