"""The table that `interlace serve` prints: what is promised, and where it is kept."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from interlace.cli.screen import table
from interlace.control.snapshots import Placement, placements
from interlace.core.model import Model
from interlace.engine.snapshot import EngineSnapshot


def show_serving(out: Console, serving: Sequence[Model], engine: EngineSnapshot) -> None:
    """Print one line per model and partition, then what is not served and why."""
    made = table(["model", "where"], ["SLO ms", "share", "batch", "capacity rows/s", "MB"])
    here = placements(engine)
    for model in serving:
        for place in (one for one in here if one.model == model.key):
            made.add_row(*_line(model, place, engine))
    out.print(made)


def _line(model: Model, place: Placement, engine: EngineSnapshot) -> tuple[str, ...]:
    unit = "core" if engine.fleet.gpu(place.gpu).kind.startswith("cpu") else "SM"
    resident = engine.partitions[place.partition].resident_bytes.get(model.key, 0)
    name = model.name if model.version == 1 else f"{model.name}/{model.version}"
    return (
        name,
        f"{place.gpu} {unit} {_spans(place.units)}",
        f"{model.terms.slo_ms:g}",
        f"{place.share_pct} %",
        str(place.batch),
        f"{place.rows_per_s:.1f}",
        f"{resident / 1e6:.0f}",
    )


def _spans(units: Sequence[int]) -> str:
    """Unit numbers, those in a row as a span: ``0-7,12``."""
    spans: list[list[int]] = []
    for unit in sorted(units):
        if spans and unit == spans[-1][-1] + 1:
            spans[-1][1:] = [unit]
        else:
            spans.append([unit])
    return ",".join("-".join(map(str, span)) for span in spans)
