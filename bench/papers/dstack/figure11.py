"""Figure 11: 2, 3, 4 and 7 models under five schedulers and ours (a); rates that change (b).

python -m bench.papers.dstack.figure11

11a: fixed batches under default MPS (FB), temporal sharing (T), Triton (Tri), GSLICE (G), D-STACK,
and our own row, at the paper's rates: 700/s for BERT and Mobilenet (BERT's is not given), 320 for
ResNet-50, 160 for VGG-19; in C-7 440, 220 and 80. Throughput is what was answered; missed is late,
dropped or refused. Left open: how much models slow each other under MPS without limits. On a GPU
that divides its SMs without loss FB misses next to nothing; the bars of FB are drawn for a slowdown
of 30 % by each neighbour beyond what SMs are short of, and the table has others. FB waits for a
batch of 16 for half the SLO at most. GSLICE's shares are scaled down where knees exceed the GPU.
"C-7 steep" is C-7 with models that use a smaller share than their knee less well, by
(knee / share)^0.3, since our row likes small shares.

11b: Alexnet, Mobilenet, ResNet-50 and VGG-19 in five sessions of 2 s; in each but the first one
model's rate is lowered, in that order, to 40 % ("a random amount" in the paper). The others are
offered a fifth more than Table 6's batches in every SLO, all the time, so that there is something
to take up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from matplotlib.figure import Figure

from bench.papers.dstack.published import (
    FEW_RPS,
    FIGURE_11B_PCT,
    SEVEN_GAIN,
    SEVEN_MISSED_PCT,
    SEVEN_RPS,
    SEVEN_USED_PCT,
)
from bench.papers.dstack.sessions import changing, drawn
from bench.papers.dstack.show import COLOURS, Row, report
from bench.papers.dstack.trial import Figures, of_table_6, run
from bench.papers.dstack.v100 import profiles
from interlace.device.simulated import Physics
from interlace.perf.interference import Runner

_TWO: Final = ("resnet50", "vgg19")
_RATES: Final = {**FEW_RPS, "bert": 700.0}
CASES: Final[Mapping[str, Mapping[str, float]]] = {
    "C-2": {m: _RATES[m] for m in _TWO},
    "C-3": {m: _RATES[m] for m in (*_TWO, "bert")},
    "C-4": {m: _RATES[m] for m in (*_TWO, "bert", "mobilenet")},
    "C-7": SEVEN_RPS,
}
SYSTEMS: Final = {
    "FB": "fixed",
    "T": "temporal",
    "Tri": "triton",
    "G": "gslice",
    "D-STACK": "dstack",
    "interlace": "interlace",
}
_SLOWER: Final = 0.3
_OTHER_SLOWER: Final = (0.0, 0.15)
_STEEP: Final = 0.3
_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Uncontrolled:
    """Each neighbour without limits adds that part to a batch's latency."""

    part: float

    def __call__(self, runner: Runner, neighbours: Sequence[Runner]) -> float:
        return 1.0 + self.part * len(neighbours)


def served(name: str, case: str, seconds: float, slower: float = _SLOWER) -> Figures:
    """One bar of 11a."""
    physics = Physics(interference=Uncontrolled(slower)) if name == "FB" else None
    known = of_table_6(CASES[case], profiles())
    return run(SYSTEMS[name], known, seconds, physics=physics)


def compared(found: Mapping[str, Mapping[str, Figures]]) -> list[Row]:
    """By case and scheduler."""
    rows: list[Row] = []
    for case, ones in found.items():
        rows += [
            Row(f"11a {case}: {n}, answered", None, f.total_rps, "/s") for n, f in ones.items()
        ]
        for name, one in ones.items():
            rows.append(
                Row(
                    f"11a {case}: {name}, missed",
                    _missed(case, name),
                    100 * one.missed_of_all,
                    " %",
                )
            )
    seven = found["C-7"]
    ours = seven["D-STACK"]
    rows.append(Row("11a C-7: D-STACK, use", SEVEN_USED_PCT, ours.used_pct, " %"))
    for name in ("FB", "T", "Tri", "G"):
        gain = ours.good_rps / seven[name].good_rps
        rows.append(Row(f"11a C-7: D-STACK / {name}, in time (more than)", SEVEN_GAIN, gain))
    return rows


def _missed(case: str, name: str) -> float | None:
    """Of the others "more than" so much, and of D-STACK nothing in C-2 to C-4."""
    if name == "interlace":
        return None
    if name == "D-STACK":
        return SEVEN_MISSED_PCT["dstack"] if case == "C-7" else 0.0
    return SEVEN_MISSED_PCT["others"] if case == "C-7" else None


def why(seconds: float) -> list[Row]:
    """What FB's misses depend on, and what our row's success does."""
    rows = []
    for part in _OTHER_SLOWER:
        missed = 100 * served("FB", "C-7", seconds, part).missed_of_all
        rows.append(
            Row(f"11a C-7: FB, missed with {100 * part:.0f} % a neighbour", 68.0, missed, " %")
        )
    steep = of_table_6(SEVEN_RPS, profiles(steep=_STEEP))
    for name in ("dstack", "interlace"):
        missed = 100 * run(name, steep, seconds).missed_of_all
        rows.append(Row(f"11a C-7 steep: {name}, missed", None, missed, " %"))
    return rows


def main(
    arguments: list[str] | None = None,
    seconds: float = _SECONDS,
    cases: Sequence[str] = tuple(CASES),
    session_s: float = 2.0,
) -> list[Row]:
    """Print, draw, and return the rows."""
    found = {case: {name: served(name, case, seconds) for name in SYSTEMS} for case in cases}
    rows = compared(found) + why(seconds)
    sessions = changing(session_s)
    for index, one in enumerate(sessions):
        rows.append(Row(f"11b T{index}: use", FIGURE_11B_PCT, one.used_pct, " %"))
        rows += [Row(f"11b T{index}: {m}", None, r, "/s") for m, r in one.answered_rps.items()]

    def draw(figure: Figure) -> None:
        above, missed, below = figure.subplots(1, 3)
        for index, name in enumerate(SYSTEMS):
            places = [i + (index - 2.5) * 0.14 for i in range(len(found))]
            total = [ones[name].good_rps for ones in found.values()]
            late = [100 * ones[name].missed_of_all for ones in found.values()]
            above.bar(places, total, 0.14, label=name, color=COLOURS[index])
            missed.bar(places, late, 0.14, color=COLOURS[index])
        for axes, label in ((above, "in time, requests/s"), (missed, "missed, %")):
            axes.set_xticks(range(len(found)), list(found))
            axes.set_ylabel(label)
        above.legend(frameon=False, fontsize=7)
        drawn(below, sessions)

    return report(__doc__, rows, draw, "figure11", arguments, (10.0, 3.2))


if __name__ == "__main__":
    main()
