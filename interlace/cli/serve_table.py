"""The table that `interlace serve` prints: what is promised, and where it is kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from rich.console import Console

from interlace.cli.screen import table
from interlace.control.snapshots import Placement, placements
from interlace.core.model import Model
from interlace.engine.snapshot import EngineSnapshot

#: Of more models than this the first ones are printed.
_SHOWN: Final = 50


def show_serving(out: Console, serving: Sequence[Model], engine: EngineSnapshot) -> None:
    """Print one line per model and partition, of the first models if there are many."""
    made = table(["model", "where"], ["SLO ms", "share", "batch", "capacity rows/s", "MB"])
    here: defaultdict[str, list[Placement]] = defaultdict(list)
    for place in placements(engine):
        here[place.model].append(place)
    for model in serving[:_SHOWN]:
        for place in here[model.key]:
            made.add_row(*_line(model, place, engine))
    out.print(made)
    if len(serving) > _SHOWN:
        out.print(f"and {len(serving) - _SHOWN} models more: interlace top shows all")


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
