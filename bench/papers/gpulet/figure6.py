"""Figure 6: how much pairs of batches slow each other, as a distribution.

The paper measures 250 pairs of five models on an RTX 2080 Ti. Without that GPU nothing is
measured here: the first curve is the law of interference that Figures 12, 13, 15 and 16 are
simulated with, whose one constant was set so that its 90th percentile is the paper's. It is an
input, shown for what it is. With --data (a clone or git directory of icloud-ecnu/igniter) the
second curve is measured, by others, on a V100: the slowdowns of both sides of 750 pairs.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
from matplotlib.figure import Figure

from bench.harness import COLOURS, Report, Row, main
from bench.papers.gpulet.law import LAW, PUBLISHED_P90, overheads
from bench.planning.pairs import read


def figure6(*, data: Annotated[Path | None, "clone of the measured pairs"] = None) -> Report:
    """The distribution of slowdowns."""
    curves = {"the law used here": overheads(LAW) * 100.0}
    if data:
        slowdowns = [one.slowdown for one in read(data).seen]
        curves["V100, measured (igniter)"] = np.sort(slowdowns) * 100.0 - 100.0
    rows = []
    for name, values in curves.items():
        high = float(np.quantile(values, 0.9))
        rows += [
            Row(f"{name}: 90 % below", PUBLISHED_P90 * 100, high, " %"),
            Row(f"{name}: median", None, float(np.median(values)), " %"),
            Row(f"{name}: largest", None, float(values[-1]), " %"),
        ]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for (name, values), colour in zip(curves.items(), COLOURS, strict=False):
            axes.step(values, np.linspace(0, 100, len(values)), color=colour, label=name)
        axes.plot([PUBLISHED_P90 * 100], [90], "o", color="black", label="the paper's 90 %")
        axes.set(xlabel="latency overhead, %", ylabel="cumulative, %", ylim=(0, 100))
        axes.legend(frameon=False, fontsize=8)

    return Report(rows, draw, (5.0, 3.0))


if __name__ == "__main__":
    main(figure6)
