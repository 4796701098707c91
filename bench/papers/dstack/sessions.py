"""Figure 11b's sessions: the rates of one model after the other fall, and what becomes of use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from matplotlib.axes import Axes

from bench.harness import COLOURS
from bench.papers.dstack.published import BATCH, TABLE_6
from bench.papers.dstack.trial import Figures, figures, of_table_6, run
from bench.papers.dstack.v100 import profiles
from interlace.sim.arrivals import Times
from interlace.sim.workload.spacing import Uniform

#: T1 to T4: whose rate falls.
FALLING: Final = ("alexnet", "mobilenet", "resnet50", "vgg19")
_LOWERED, _OFFERED = 0.4, 1.3


@dataclass(frozen=True, slots=True)
class Dip:
    """Evenly random gaps; from one time to another at a lower rate."""

    rate_rps: float
    from_s: float
    until_s: float

    def __call__(self, seconds: float, random: np.random.Generator) -> Times:
        times = Uniform(self.rate_rps)(seconds, random)
        inside = (times >= self.from_s * 1000.0) & (times < self.until_s * 1000.0)
        kept: Times = times[~inside | (random.uniform(size=len(times)) < _LOWERED)]
        return kept


def changing(session_s: float) -> list[Figures]:
    """The figures of T0 to T4, of one run of D-STACK."""
    rates = {m: _OFFERED * BATCH * 1000.0 / TABLE_6[m].slo_ms for m in FALLING}
    dips = {
        m: Dip(rates[m], index * session_s, (index + 1) * session_s)
        for index, m in enumerate(FALLING, 1)
    }
    known = of_table_6(rates, profiles())
    whole = run("dstack", known, session_s * (len(FALLING) + 1), dips).record
    parts = []
    for index in range(len(FALLING) + 1):
        from_ms = whole.from_ms + index * session_s * 1000.0
        until_ms = from_ms + session_s * 1000.0
        inside = [one for one in whole.served if from_ms <= one.arrived_ms < until_ms]
        part = replace(whole, from_ms=from_ms, until_ms=until_ms, served=inside)
        parts.append(figures(part, known))
    return parts


def drawn(axes: Axes, sessions: Sequence[Figures]) -> None:
    """Throughput of each model, stacked, and use."""
    below = [0.0] * len(sessions)
    names = [f"T{index}\n{one.used_pct:.0f} %" for index, one in enumerate(sessions)]
    for colour, model in zip(COLOURS, FALLING, strict=False):
        rates = [one.answered_rps[model] for one in sessions]
        axes.bar(names, rates, bottom=below, label=model, color=colour)
        below = [low + rate for low, rate in zip(below, rates, strict=True)]
    axes.set_ylabel("answered, requests/s")
    axes.legend(frameon=False, fontsize=7, ncols=2)
