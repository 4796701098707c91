"""Profiles as a table for people: latency by batch and share, memory, load time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.table import Table

from interlace.cli.screen import table
from interlace.core.profile import Profile

_MEGABYTE = 1e6


def latency_table(profiles: Mapping[str, Profile]) -> Table:
    """Median and p95 in ms, and rows per second, for each model, batch and share."""
    shares = sorted({share for one in profiles.values() for _, share in one.points})
    headings = [f"{word} {share} %" for share in shares for word in ("median", "p95", "rows/s")]
    made = table(("model",), ("batch", *headings), "latency in ms by batch and share")
    for name, profile in profiles.items():
        for index, row in enumerate(_rows(profile, shares)):
            made.add_row("" if index else name, *row)
        made.add_section()
    return made


def cost_table(profiles: Mapping[str, Profile]) -> Table:
    """Memory, load time and overhead of each model."""
    headings = ("bare MB", "to run MB", "load ms", "overhead ms")
    made = table(("model",), headings, "memory, and time beside the model's own")
    for name, profile in profiles.items():
        made.add_row(
            name,
            f"{profile.weights_bytes / _MEGABYTE:.1f}",
            f"{profile.activation_bytes / _MEGABYTE:.1f}",
            f"{profile.load_ms:.0f}",
            f"{profile.overhead.total_ms:.2f}",
        )
    return made


def _rows(profile: Profile, shares: list[int]) -> Iterator[list[str]]:
    for batch in sorted({batch for batch, _ in profile.points}):
        cells = [str(batch)]
        for share in shares:
            point = profile.points.get((batch, share))
            if point is None:
                cells += ["-", "-", "-"]
                continue
            rate = f"{1000.0 * batch / point.median_ms:.0f}"
            cells += [f"{point.median_ms:.2f}", f"{point.p95_ms:.2f}", rate]
        yield cells
