"""Figure 17: memory of TF-Serving, of E2bird without its two savings (NM-Ebird), and of E2bird.

python -m bench.papers.e2bird.figure17

Counted from the networks' tensors: one worker of 32 with a tensor for every operation (TF-Serving);
N-Ebird's six workers with weights and tensors of their own (NM-Ebird); the engine of Table 4's
search with one copy of the weights, and memory used again once a tensor's last reader has run
(E2bird, sections 6.2.1 and 6.2.2). The bars are only drawn; printed are the means.

Left open, and not counted: the convolutions' workspace and what CUDA and the frameworks take for
themselves. They are in all three bars and do not shrink, so the savings counted here are larger
than the measured ones. Five of the paper's six networks: Inception-v4 is left out.
"""

from __future__ import annotations

from typing import Final

from matplotlib.axes import Axes

from bench.papers.e2bird.networks import NETWORKS, graph
from bench.papers.e2bird.published import E_UNDER_NM_PCT, E_UNDER_TF_PCT, MAX_BATCH, NM_OVER_TF_PCT
from bench.papers.e2bird.show import COLOURS, Row, report
from bench.papers.e2bird.table4 import guideline
from interlace.perf.worker_sizes import naive
from interlace.perf.worker_sizes import rows as rows_of

SYSTEMS: Final = ("TF-Serving", "NM-Ebird", "E2bird")
_MB: Final = 4 / 1e6


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


def main(arguments: list[str] | None = None) -> list[Row]:
    """Print, draw, and return the rows."""
    found = {name: memory_mb(name) for name in NETWORKS}

    def mean_pct(one: str, other: str) -> float:
        return 100 * sum(m[one] / m[other] - 1 for m in found.values()) / len(found)

    out = [
        Row(
            "NM-Ebird over TF-Serving, mean", NM_OVER_TF_PCT, mean_pct("NM-Ebird", SYSTEMS[0]), " %"
        ),
        Row("E2bird under NM-Ebird, mean", E_UNDER_NM_PCT, -mean_pct("E2bird", "NM-Ebird"), " %"),
        Row("E2bird under TF-Serving, mean", E_UNDER_TF_PCT, -mean_pct("E2bird", SYSTEMS[0]), " %"),
    ]
    for name, memory in found.items():
        out += [Row(f"{name}, {system}", None, mb, " MB") for system, mb in memory.items()]

    def draw(axes: Axes) -> None:
        for index, system in enumerate(SYSTEMS):
            places = [place + (index - 1) * 0.27 for place in range(len(found))]
            heights = [memory[system] / 1000 for memory in found.values()]
            axes.bar(places, heights, 0.27, color=COLOURS[index], label=system)
        axes.set_xticks(range(len(found)), list(found))
        axes.set_ylabel("GB")
        axes.legend(frameon=False, fontsize=8)

    return report(__doc__, out, draw, "figure17", arguments)


if __name__ == "__main__":
    main()
