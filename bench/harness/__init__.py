"""What every benchmark shares: its command, its tables, its pictures, and the record of a run.

A benchmark is a function. Its parameters are the options of its command, and it returns a `Report`:

    def figure4(*, sample: Annotated[int, "scenarios asked"] = 1_500) -> Report:
        ...
        return Report(rows, draw=draw)

    if __name__ == "__main__":
        main(figure4)

The docstrings of module and function are what ``--help`` prints. Of several, ``main(figure4,
figure9)``, the first argument names one. Every command takes ``--out FOLDER`` and leaves
there NAME.json, with date, command and machine, and NAME.svg where there is a picture.
"""

from bench.harness.bisection import highest
from bench.harness.command import main, run
from bench.harness.drawing import COLOURS, bars, curves, grouped_bars, panels, rate_and_latency
from bench.harness.report import Picture, Report, Row, Table, each
from bench.harness.spread import Interval, Spread, interval, percentile, spread

__all__ = [
    "COLOURS",
    "Interval",
    "Picture",
    "Report",
    "Row",
    "Spread",
    "Table",
    "bars",
    "curves",
    "each",
    "grouped_bars",
    "highest",
    "interval",
    "main",
    "panels",
    "percentile",
    "rate_and_latency",
    "run",
    "spread",
]
