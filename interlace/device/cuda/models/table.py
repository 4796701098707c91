"""What is loaded on a GPU, in a table for operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

_MIB: Final = 1 << 20
_HEAD: Final = ("model", "variant", "runs", "rows", "lanes", "weights", "inputs", "graphs")


class LoadedModelRow(NamedTuple):
    """One model. ``eager_because`` is empty if it runs as graphs of up to ``buckets`` rows."""

    model: str
    variant: str
    buckets: tuple[int, ...]
    lanes: int
    weights_bytes: int
    inputs_bytes: int
    graphs_bytes: int
    eager_because: str = ""


def render(entries: Sequence[LoadedModelRow]) -> str:
    """Lines with columns of equal width; reasons below."""
    rows = [_HEAD, *(_cells(entry) for entry in entries)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    reasons = [f"{one.model}: {one.eager_because}" for one in entries if one.eager_because]
    return "\n".join(lines + reasons)


def _cells(entry: LoadedModelRow) -> tuple[str, ...]:
    rows = " ".join(map(str, entry.buckets)) or "any"
    runs = "eagerly" if entry.eager_because else "as graphs"
    sizes = (entry.weights_bytes, entry.inputs_bytes, entry.graphs_bytes)
    mib = (f"{nbytes / _MIB:.1f} MiB" for nbytes in sizes)
    return (entry.model, entry.variant, runs, rows, str(entry.lanes), *mib)
