"""Figure 17: memory of TF-Serving, of E2bird without its two savings (NM-Ebird), and of E2bird.

Counted from the networks' tensors: one worker of 32 with a tensor for every operation (TF-Serving);
N-Ebird's six workers with weights and tensors of their own (NM-Ebird); the engine of Table 4's
search with one copy of the weights, and memory used again once a tensor's last reader has run
(E2bird, sections 6.2.1 and 6.2.2). The bars are only drawn; printed are the means.

Left open, and not counted: the convolutions' workspace and what CUDA and the frameworks take for
themselves. They are in all three bars and do not shrink, so the savings counted here are larger
than the measured ones. Five of the paper's six networks: Inception-v4 is left out.
"""

from typing import Final

from bench.harness import Report, Row, bars, each, main
from bench.papers.e2bird.model import rows as rows_of
from bench.papers.e2bird.networks import NETWORKS, graph
from bench.papers.e2bird.published import E_UNDER_NM_PCT, E_UNDER_TF_PCT, MAX_BATCH, NM_OVER_TF_PCT
from bench.papers.e2bird.table4 import guideline
from interlace.perf.worker_sizes import naive

SYSTEMS: Final = ("TF-Serving", "NM-Ebird", "E2bird")
_MB: Final = 4 / 1e6


def figure17() -> Report:
    """Memory of every network under each system."""
    found = {name: memory_mb(name) for name in NETWORKS}

    def mean_pct(one: str, other: str) -> float:
        return 100 * sum(m[one] / m[other] - 1 for m in found.values()) / len(found)

    tf, nm, e2bird = SYSTEMS
    rows = [
        Row("NM-Ebird over TF-Serving, mean", NM_OVER_TF_PCT, mean_pct(nm, tf), " %"),
        Row("E2bird under NM-Ebird, mean", E_UNDER_NM_PCT, -mean_pct(e2bird, nm), " %"),
        Row("E2bird under TF-Serving, mean", E_UNDER_TF_PCT, -mean_pct(e2bird, tf), " %"),
    ]
    for name, memory in found.items():
        rows += each(f"{name}, {{}}", memory, " MB")
    series = {s: [memory[s] / 1000 for memory in found.values()] for s in SYSTEMS}
    return Report(rows, bars(found, series, "GB"), (6.0, 3.0))


def memory_mb(name: str) -> dict[str, float]:
    """Megabytes of each system."""
    network = graph(name)
    weights, every, again = network.weights, network.everything(), network.reused()
    workers = naive(MAX_BATCH)
    in_engine = rows_of(guideline("res152").engine)
    floats = {
        "TF-Serving": weights + MAX_BATCH * every,
        "NM-Ebird": len(workers) * weights + sum(workers) * every,
        "E2bird": weights + in_engine * again,
    }
    return {system: count * _MB for system, count in floats.items()}


if __name__ == "__main__":
    main(figure17)
