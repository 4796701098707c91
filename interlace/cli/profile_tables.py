"""Profiles as a table for people: latency by batch and share, memory, load time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table

from interlace.cli.screen import table
from interlace.core.loading import link_of
from interlace.core.profile import Profile
from interlace.policy.cold_starts.catalog import COLD_POLICIES
from interlace.policy.cold_starts.frontier import moved_bytes
from interlace.profiling.corun import CoRun


def further_tables(profiles: Mapping[str, Profile], seen: Sequence[CoRun]) -> Iterator[Table]:
    """Those that have something to say."""
    if any(one.pressure for one in profiles.values()):
        yield _pressure(profiles)
    if any(one.layers for one in profiles.values()):
        yield _layers(profiles)
        yield _cold_starts(profiles)
    if seen:
        yield _company(seen)


def _pressure(profiles: Mapping[str, Profile]) -> Table:
    headings = ("batch", "share %", "L2 %", "DRAM %", "worst slowdown")
    made = table(("model",), headings, "use of memory, and what a reader beside does to it")
    for name, profile in profiles.items():
        for key, (l2, dram) in sorted(profile.pressure.items()):
            worst = max((one.slowdown for one in profile.strains.get(key, ())), default=None)
            told = "-" if worst is None else f"{worst:.2f}"
            made.add_row(name, *map(str, key), f"{100 * l2:.0f}", f"{100 * dram:.0f}", told)
    return made


def _layers(profiles: Mapping[str, Profile]) -> Table:
    headings = ("layers", "copy ms", "run ms", "run, weights on the host")
    made = table(("model",), headings, "layers: sums over them, one row")
    for name, profile in profiles.items():
        layers = profile.layers
        if layers:
            sums = (
                sum(one.copy_ms for one in layers),
                sum(one.run_ms for one in layers),
                sum(one.run_host_ms for one in layers),
            )
            made.add_row(name, str(len(layers)), *(f"{value:.2f}" for value in sums))
    return made


def _cold_starts(profiles: Mapping[str, Profile]) -> Table:
    headings = ("warm ms", *COLD_POLICIES, "measured", "bound", "MB copied", "MB left")
    made = table(("model",), headings, "cold starts, predicted: ms to the end of the first row")
    for name, profile in profiles.items():
        layers = profile.layers
        if layers:
            links = link_of(profile.gpu_kind)
            plans = [row.cold_start(layers, links) for row in COLD_POLICIES.values()]
            copied = moved_bytes(layers, plans[-1])
            left = sum(one.weights_bytes for one in layers) - copied
            times = (sum(one.run_ms for one in layers), *(plan.end_ms for plan in plans))
            bytes_mb = (f"{one / 1e6:.1f}" for one in (copied, left))
            seen = (
                f"{profile.cold_ms:.2f}" if profile.cold_ms else "-",
                f"{plans[-1].bound_ms:.2f}",
            )
            made.add_row(name, *(f"{value:.2f}" for value in times), *seen, *bytes_mb)
    return made


def _company(seen: Sequence[CoRun]) -> Table:
    headings = ("batch", "share %", "alone ms", "beside ms", "slowdown", "overlap %")
    made = table(("model", "beside"), headings, "side by side", prose=["beside"])
    for one in seen:
        beside = " + ".join(other.model for other in one.neighbours)
        times = (f"{one.alone_ms:.2f}", f"{one.beside_ms:.2f}", f"{one.slowdown:.2f}")
        cells = (str(one.runner.batch), str(one.runner.share_pct), *times)
        made.add_row(one.runner.model, beside, *cells, f"{100 * one.overlap:.0f}")
    return made


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
