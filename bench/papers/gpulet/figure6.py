"""Figure 6: how much pairs of batches slow each other, as a distribution.

python -m bench.papers.gpulet.figure6 [--data IGNITER]

The paper measures 250 pairs of five models on an RTX 2080 Ti. Without that GPU nothing is
measured here: the first curve is the law of interference that Figures 12, 13, 15 and 16 are
simulated with, whose one constant was set so that its 90th percentile is the paper's. It is an
input, shown for what it is. With --data (a clone or git directory of icloud-ecnu/igniter) the
second curve is measured, by others, on a V100: the slowdowns of both sides of 750 pairs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bench.papers.gpulet.compare import COLOURS, Row, options, save, show
from bench.papers.gpulet.law import LAW, PUBLISHED_P90, overheads
from bench.planning.pairs import read


def main(arguments: list[str] | None = None) -> list[Row]:
    """Print, draw, and return the rows."""
    parser = options(__doc__)
    parser.add_argument("--data", type=Path, help="clone of the measured pairs")
    chosen = parser.parse_args(arguments)
    curves = {"the law used here": overheads(LAW) * 100.0}
    if chosen.data:
        slowdowns = [one.slowdown for one in read(chosen.data).seen]
        curves["V100, measured (igniter)"] = np.sort(slowdowns) * 100.0 - 100.0
    rows = []
    for name, values in curves.items():
        rows.append(
            Row(f"{name}: 90 % below", PUBLISHED_P90 * 100, float(np.quantile(values, 0.9)), " %")
        )
        rows.append(Row(f"{name}: median", None, float(np.median(values)), " %"))
        rows.append(Row(f"{name}: largest", None, float(values[-1]), " %"))
    show("gpulet Figure 6: overhead of consolidation", __doc__ or "", rows)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3), layout="constrained")
    axes = figure.subplots()
    for (name, values), colour in zip(curves.items(), COLOURS, strict=False):
        axes.step(values, np.linspace(0, 100, len(values)), color=colour, label=name)
    axes.plot([PUBLISHED_P90 * 100], [90], "o", color="black", label="the paper's 90 %")
    axes.set(xlabel="latency overhead, %", ylabel="cumulative, %", ylim=(0, 100))
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, chosen.out, "figure6")
    return rows


if __name__ == "__main__":
    main()
