"""Knees and best batches of the V100 measurements published with GSLICE, drawn.

``--data`` is the csv: model, batch, gpu_pct, latency_ms_median, ..., p95_ms, p99_ms, n.
"""

import csv
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from matplotlib.figure import Figure

from bench.harness import Report, Table, main
from bench.papers.primitives.instances import multi_model
from interlace.core.profile import LatencyPoint, Profile
from interlace.perf.latency import Surface, surface
from interlace.perf.sizing import Sizing, knee_pct

SLO_MS = 50.0  # section 5.1 of D-STACK
BATCHES = (1, 4, 16)
_COLUMNS = 4
_COLOURS = ("#0072b2", "#d55e00", "#009e73")


def v100(*, data: Annotated[Path, "latency.csv"]) -> Report:
    """Knees, best sizes and instances of every model."""
    profiles = read(data)
    found = rows(profiles)
    cells = [[_cell(value) for value in one.values()] for one in found]
    height = 2.6 * -(-len(profiles) // _COLUMNS)
    return Report(
        (),
        partial(_draw, profiles),
        (3.0 * _COLUMNS, height),
        tables=[Table(list(found[0]), cells)],
        figures=found,
    )


def _cell(value: object) -> str | None:
    return None if value is None else str(value)


def read(path: Path) -> dict[str, Profile]:
    """One profile for each model in the file."""
    points: dict[str, dict[tuple[int, int], LatencyPoint]] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            key = int(row["batch"]), int(float(row["gpu_pct"]))
            times = [float(row[k]) for k in ("latency_ms_median", "p95_ms", "p99_ms")]
            point = LatencyPoint(times[0], times[1], times[2], int(row["n"]))
            points.setdefault(row["model"], {})[key] = point
    return {m: Profile(m, "gslice", "v100", 0, 0, p) for m, p in sorted(points.items())}


def rows(profiles: Mapping[str, Profile]) -> list[dict[str, object]]:
    """For each model: knees by batch, the best size and instances within the SLO."""
    table: list[dict[str, object]] = []
    for model, profile in profiles.items():
        known = surface(profile, "median_ms")
        most = max(batch for batch, _ in profile.points)
        size = Sizing(over_provision_pct=5)(known, SLO_MS, known.shares_pct, most)
        many = multi_model(known, known.shares_pct, SLO_MS / 2, most)
        table.append(
            {
                "model": model,
                **{f"knee_b{batch}_pct": knee_pct(known, batch) for batch in BATCHES},
                "best_batch": size.batch if size else 0,
                "best_share_pct": size.share_pct if size else 0,
                "best_ms": round(size.latency_ms, 2) if size else None,
                "instances": f"{many.count} x {many.share_pct} %" if many else "none",
                "rows_per_s": round(many.rows_per_s) if many else 0,
            }
        )
    return table


def _draw(profiles: Mapping[str, Profile], figure: Figure) -> None:
    """Latency over the share, one panel for each model, knees marked."""
    height = -(-len(profiles) // _COLUMNS)
    panels = figure.subplots(height, _COLUMNS, squeeze=False).ravel()
    for panel, (model, profile) in zip(panels, profiles.items(), strict=False):
        known = surface(profile, "median_ms")
        for batch, colour in zip(BATCHES, _COLOURS, strict=True):
            shares, values = _curve(known, batch)
            panel.plot(shares, values, color=colour, label=f"batch {batch}")
            knee = knee_pct(known, batch)
            panel.plot([knee], [known.latency_ms(batch, knee)], "o", color=colour)
        panel.set(title=model, yscale="log", xlabel="share, %", ylabel="median, ms")
    panels[0].legend(frameon=False)
    for panel in panels[len(profiles) :]:
        panel.set_visible(False)


def _curve(known: Surface, batch: int) -> tuple[Sequence[int], list[float]]:
    return known.shares_pct, [known.latency_ms(batch, share) for share in known.shares_pct]


if __name__ == "__main__":
    main(v100)
