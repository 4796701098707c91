"""Figure 4 of D-STACK from its equations: latency and its derivative over SMs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from bench.papers.dstack.dnn import Dnn
from interlace.perf.knee import knee, worth_of_unit

#: N1 and the SMs that the paper reads off Figure 4b.
READ = {20: 9, 40: 24, 60: 31}
SMS = range(1, 81)
_DRAWS = 1_000
_MOST_REPEATS = 12


def latencies(first: int, repetitions: tuple[int, ...] = (), floored: bool = False) -> list[float]:
    """E_t over 1 to 80 SMs for the paper's 50 kernels, t_p 40 and t_np 10."""
    dnn = Dnn(50, first, 40.0, 10.0, repetitions, floored=floored)
    return [dnn.latency_ms(sms) for sms in SMS]


def knee_of(values: Sequence[float]) -> int:
    """The SMs at which equation 6 is largest."""
    return knee(dict(zip(SMS, values, strict=True)))


def drawn(first: int, draws: int) -> list[int]:
    """Knees with repetition counts of 1 to 12 drawn anew, which the paper does not give."""
    chance = Random(first)
    found = []
    for _ in range(draws):
        counts = tuple(chance.randint(1, _MOST_REPEATS) for _ in range(50))
        found.append(knee_of(latencies(first, counts)))
    return sorted(found)


def rows(draws: int) -> list[dict[str, object]]:
    """One row for each N1: the paper's reading, the printed equations, and what R_i can do."""
    table = []
    for first, read in READ.items():
        knees = drawn(first, draws)
        table.append(
            {
                "n1": first,
                "paper": read,
                "printed": knee_of(latencies(first)),
                "floored": knee_of(latencies(first, floored=True)),
                "drawn_p01": knees[len(knees) // 100],
                "drawn_p99": knees[-len(knees) // 100 - 1],
                "drawn_as_read": sum(k == read for k in knees) / len(knees),
            }
        )
    return table


def draw(table: Sequence[Mapping[str, object]], path: Path) -> None:
    """Latency (4a) and the size of equation 6 (4b), with both knees marked."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for row, colour in zip(table, ("#0072b2", "#d55e00", "#009e73"), strict=True):
        first = int(str(row["n1"]))
        values = latencies(first)
        worth = [worth_of_unit(ms, sms) for ms, sms in zip(values, SMS, strict=True)]
        top = max(worth)
        left.plot(SMS, values, color=colour, label=f"N1 = {first}")
        right.plot(SMS, [w / top for w in worth], color=colour)
        right.axvline(int(str(row["printed"])), color=colour, lw=0.8)
        right.axvline(int(str(row["paper"])), color=colour, lw=0.8, ls=":")
    left.set(xlabel="SMs", ylabel="latency, units of time", yscale="log")
    left.legend(frameon=False)
    right.set(xlabel="SMs (line: knee here, dots: read in the paper)", ylabel="equation 6 / peak")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder for dnn_model.json and dnn_model.svg")
    parser.add_argument("--draws", type=int, default=_DRAWS)
    asked = parser.parse_args()
    table = rows(asked.draws)
    for row in table:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    print(
        "With one set of R_i for all three, latency depends on S / N1 alone and every knee is the "
        "same part of N1; the paper's are 0.45, 0.60 and 0.52. Only counts R_i of each case's own, "
        "which it does not give, move them apart like that."
    )
    if asked.out:
        draw(table, asked.out / "dnn_model.svg")
        (asked.out / "dnn_model.json").write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
