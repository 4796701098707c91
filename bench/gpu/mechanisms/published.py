"""What the papers print in their text, as gains: how many times better with the mechanism."""

from __future__ import annotations

from typing import Final

from bench.gpu.mechanisms.sides import Published
from bench.papers.e2bird import published as e2bird
from bench.papers.primitives import published as primitives

#: Section III-B and Figure 6a, latency: AlexNet 3.2 ms, 3.8 with callbacks, 4.17 with blocking;
#: of ResNet-50 its gains of 10.5 and 16.7 %.
SYNC_LITE: Final = {
    ("alexnet", "callback"): 3.8 / 3.2,
    ("alexnet", "blocking"): 4.17 / 3.2,
    ("resnet50", "callback"): 1.105,
    ("resnet50", "blocking"): 1.167,
}
#: Figure 6b: the GPU idles "more than 40 %" and "30 %" less.
IDLE: Final = {"alexnet": 1 / (1 - 0.40), "resnet50": 1 / (1 - 0.30)}
#: CPU cycles to bring 8 images to the GPU, copied and gathered; Table I itself is a picture.
DMA_ROWS: Final = 8
DMA_CPU: Final = Published("primitives, III-C, CPU cycles of the transfer", 2506216 / 86263)
MORE_INSTANCES: Final = primitives.MORE_INSTANCES
ADVISED: Final = primitives.ADVISED
INSTANCES: Final = Published("primitives, Table IV", primitives.INSTANCES_GAIN)
#: Table II is about a T4.
T4_BYTES: Final = 16_000_000_000
COPY_START_MS: Final = e2bird.COPY_START_MS
FLAT_UP_TO: Final = e2bird.FLAT_UP_TO_WORKERS
#: Rows of the six workers of the engine (Table 4).
WORKERS: Final = tuple(
    1 << power for power, count in enumerate(e2bird.TABLE_4_ENGINE) for _ in range(count)
)
MOST_ROWS: Final = e2bird.MAX_BATCH
ENGINE_OVER_NAIVE: Final = Published(
    "E2bird, Figure 17, NM-Ebird over E2bird", 1 / (1 - e2bird.E_UNDER_NM_PCT / 100)
)
ENGINE_OVER_TF: Final = Published(
    "E2bird, Figure 17, TF-Serving over E2bird", 1 / (1 - e2bird.E_UNDER_TF_PCT / 100)
)
N_OVER_TF: Final = Published("E2bird, Figure 14, mean", 1 + e2bird.N_OVER_TF_PCT / 100)
E_OVER_N: Final = Published("E2bird, Figure 14, mean", 1 + e2bird.E_OVER_N_PCT / 100)
E_OVER_TF: Final = Published("E2bird, Figure 14, mean", 1 + e2bird.MEAN_GAIN_PCT / 100)
#: Figure 13, N-Ebird over TF-Serving: the least and the most over six networks, in %.
LOW_SAVED_PCT: Final = e2bird.LOW_LOAD_SAVED_PCT
HIGH_SAVED_PCT: Final = e2bird.HIGH_LOAD_SAVED_PCT
E_OVER_N_SAVED_PCT: Final = e2bird.E_OVER_N_SAVED_PCT
