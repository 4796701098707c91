"""Figures that E2bird prints in its text and tables; what is only drawn is not here."""

from typing import Final

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
#: Section 7.3.1 and Figure 12: the fastest configuration of 32 rows, one worker, the slowest.
FASTEST_MS: Final = 85.3
SINGLE_MS: Final = 93.7
SLOWEST_FACTOR: Final = 4.0
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
#: Section 5.3, Figure 7: what a picture's own copy costs at most, and where workers stay free.
COPY_START_MS: Final = 0.0039
FLAT_UP_TO_WORKERS: Final = 64
#: Section 8.5, Figure 17: memory, in %.
NM_OVER_TF_PCT: Final = 15.2
E_UNDER_NM_PCT: Final = 64.8
E_UNDER_TF_PCT: Final = 59.4
