"""What E2bird prints, a Titan RTX made of that, and what had to be assumed about it.

Printed: latencies of three ResNets at batches of 4 to 32 (Table 1), what several workers do to each
other (section 7.3.1, Figure 12, Table 4), what a picture's own copy costs (Figure 7).

Assumed: batches of 1 and 2 lie on the line through 4 and 8; a picture is 224 x 224 x 3 floats;
PCIe 3.0 x16 moves 12 GB/s from pinned memory, half of that from TF-Serving's pageable memory,
which is gathered first at the same pace; TF-Serving spends 1 ms of the host's time on each batch.

``Streams`` is a law with five constants, fitted to what is printed of Res152: two workers of 8 and
one of 16 rows take 85.3 ms, the slowest configuration four times that, N-Ebird's list what its
hypothesis says (one batch of all rows); ``unfilled`` may be 0.49 to 0.80 for Table 4's other rows
to be the fastest, too. That one law can have all of this was not known before; what it says of
Res50 and Res101, of traffic, and of all other configurations was not put in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.hardware import Gpu
from interlace.core.profile import LatencyPoint, Profile, Profiles
from interlace.device.simulated.device import SimulatedDevice
from interlace.device.simulated.physics import HostLink, Physics, RunningBatch, Transfer
from interlace.device.simulated.running_batches import Timer
from interlace.perf.latency import Surface
from interlace.perf.worker_sizes import Configuration, Measure

#: Table 1: latency in ms of one worker on a Titan RTX, by model and batch.
TABLE_1_MS: Final = {
    "res50": {4: 6.8, 8: 12.1, 16: 21.5, 32: 40.1},
    "res101": {4: 11.8, 8: 20.6, 16: 36.2, 32: 65.4},
    "res152": {4: 17.3, 8: 29.2, 16: 49.5, 32: 93.7},
}
#: Table 1: requests/s.
TABLE_1_RPS: Final = {
    "res50": {4: 588, 8: 661, 16: 740, 32: 798},
    "res101": {4: 338, 8: 388, 16: 441, 32: 489},
    "res152": {4: 231, 8: 273, 16: 323, 32: 341},
}
#: Section 8.2.
QOS_MS: Final = 200.0
#: Section 3.2: OPT_Wait for Res152, and the largest batch.
OPT_WAIT_MS: Final = 30.0
MAX_BATCH: Final = 32
#: Table 4, as counts of workers of 1, 2, 4, ... rows.
TABLE_4: Final = {
    4: (0, 0, 1, 0, 0, 0),
    8: (0, 0, 0, 1, 0, 0),
    16: (0, 0, 2, 1, 0, 0),
    32: (0, 0, 0, 2, 1, 0),
}
TABLE_4_ENGINE: Final = (1, 1, 1, 2, 1, 0)
#: Section 8.2, Figure 13: latency saved, in %, lowest and highest over the benchmarks.
LOW_LOAD_SAVED_PCT: Final = (44.6, 70.9)
HIGH_LOAD_SAVED_PCT: Final = (7.4, 53.1)
E_OVER_N_SAVED_PCT: Final = (5.0, 30.0)
#: Section 8.3, Figure 14: throughput gained, in %.
N_OVER_TF_PCT: Final = 34.4
E_OVER_N_PCT: Final = 9.9
BEST_GAIN_PCT: Final = 62.8
MEAN_GAIN_PCT: Final = 47.4
#: Section 5.3, Figure 7: what a picture's own copy costs at most.
COPY_START_MS: Final = 0.0039


GPU: Final = GPU_KINDS["titan-rtx"]
MODELS: Final = tuple(TABLE_1_MS)
#: Millions of parameters (He et al., CVPR 2016; torchvision's counts).
PARAMETERS_M: Final = {"res50": 25.6, "res101": 44.5, "res152": 60.2}
PICTURE: Final = Transfer(224 * 224 * 3 * 4, 1000 * 4)
_PINNED_BYTES_PER_MS: Final = 12e6
_PAGEABLE_BYTES_PER_MS: Final = 6e6
_TF_BATCH_MS: Final = 1.0


def alone_ms(model: str) -> Mapping[int, float]:
    """Table 1, continued below 4 rows by a line."""
    known = TABLE_1_MS[model]
    slope_ms = (known[8] - known[4]) / 4
    return {1: known[4] - 3 * slope_ms, 2: known[4] - 2 * slope_ms, **known}


def profile(model: str, extra_ms: Mapping[int, float] | None = None) -> Profile:
    """A model alone on the whole GPU; ``extra_ms`` is added to each batch."""
    times = {b: ms + (extra_ms or {}).get(b, 0.0) for b, ms in alone_ms(model).items()}
    points = {(b, 100): LatencyPoint(ms, ms, ms, 1) for b, ms in times.items()}
    weights_bytes = int(PARAMETERS_M[model] * 4e6)
    return Profile(model, "table 1", GPU.kind, weights_bytes, 10**8, points, load_ms=100.0)


def outside_ms(rows: int) -> float:
    """What TF-Serving does around a batch while the GPU has nothing to do (Figure 3)."""
    moved_ms = (PICTURE.input_bytes + PICTURE.output_bytes) * rows / _PAGEABLE_BYTES_PER_MS
    gathered_ms = PICTURE.input_bytes * rows / _PAGEABLE_BYTES_PER_MS
    return _TF_BATCH_MS + moved_ms + gathered_ms


@dataclass(frozen=True, slots=True)
class Streams:
    """Workers of one model in streams of one GPU.

    Together k workers end after h(k) * (A + ``unfilled`` * (E - A)), where A is what one batch of
    all rows takes and E the sum of what each takes alone: streams fill each other's gaps, less so
    the smaller their batches are, and many of them are slow to switch. h is ``hidden``, straight
    between its points.
    """

    unfilled: float = 0.6
    hidden: tuple[tuple[float, float], ...] = (
        (1, 1.0),
        (2, 0.93),
        (3, 0.8345),
        (6, 0.837),
        (30, 1.774),
    )

    def together_ms(self, sizes: Sequence[int], latency: Surface) -> float:
        """When workers of these sizes that begin together have all ended."""
        of_all_ms = latency.latency_ms(sum(sizes), 100)
        of_each_ms = sum(latency.latency_ms(size, 100) for size in sizes)
        counts, factors = zip(*self.hidden, strict=True)
        factor = float(np.interp(len(sizes), counts, factors))
        return factor * (of_all_ms + self.unfilled * (of_each_ms - of_all_ms))

    def __call__(self, running: Sequence[RunningBatch]) -> Sequence[float]:
        if len(running) == 1:
            return (1.0,)
        all_ms = self.together_ms([one.rows for one in running], running[0].latency)
        return [min(1.0, one.latency.latency_ms(one.rows, 100) / all_ms) for one in running]

    def measure(self, latency: Surface) -> Measure:
        """The mean latency of a configuration's workers, which all end together here."""

        def measured(one: Configuration) -> float:
            sizes = [1 << power for power, count in enumerate(one) for _ in range(count)]
            return self.together_ms(sizes, latency)

        return measured


class OneAfterTheOther:
    """Batches of one session: the first that began has the whole GPU (section 3.2)."""

    def __call__(self, running: Sequence[RunningBatch]) -> Sequence[float]:
        return [1.0, *(0.0 for _ in running[1:])]


STREAMS: Final = Streams()


def ebird_gpu(gpu: Gpu, timer: Timer, truth: Profiles) -> SimulatedDevice:
    """Inputs copied when they arrive, workers side by side."""
    link = HostLink(_PINNED_BYTES_PER_MS, COPY_START_MS)
    physics = Physics(contention=STREAMS, link=link, transfers=dict.fromkeys(MODELS, PICTURE))
    return SimulatedDevice(gpu, timer, truth, physics=physics)


def tf_gpu(gpu: Gpu, timer: Timer, truth: Profiles) -> SimulatedDevice:
    """Copy, compute, copy, one batch after the other: all of it is in the profile."""
    return SimulatedDevice(gpu, timer, truth, physics=Physics(contention=OneAfterTheOther()))
