"""Drawings of runs: latency, tiles on each accelerator, goodput against load, accelerators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from interlace.core.figure_file import model_colours
from interlace.sim.record import Execution, RunRecord
from interlace.sim.report import ANSWERED, gpus_over_time, utilisation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Bottom and height in percent of each part of a tile.
_Pieces = tuple[tuple[int, int], ...]
#: Executions in one drawing of tiles; more are no longer seen apart.
_MOST_TILES: Final = 4_000


def latency_cdf(records: Mapping[str, RunRecord]) -> Figure:
    """Latency over SLO of what was answered: the part that took at most so long, a line a run."""
    figure, axes = _figure(1)
    for name, record in records.items():
        taken = sorted(
            (one.answered_ms - one.arrived_ms) / (one.deadline_ms - one.arrived_ms)
            for one in record.served
            if one.outcome in ANSWERED
        )
        # Of all requests: what was never answered keeps the line below 1.
        parts = np.arange(1, len(taken) + 1) / max(1, len(record.served))
        axes[0].plot(taken, parts, label=name)
    axes[0].axvline(1.0, color="grey", linestyle="--", linewidth=0.8)
    _labels(axes[0], "latency / SLO", "fraction of requests")
    axes[0].set_xlim(0, 1.5)
    axes[0].legend()
    return figure


def by_model(record: RunRecord) -> Mapping[str, RunRecord]:
    """A run taken apart: each model's requests alone."""
    models = sorted({one.model for one in record.served})
    return {
        model: replace(record, served=[one for one in record.served if one.model == model])
        for model in models
    }


def tiles(record: RunRecord, from_ms: float, until_ms: float) -> Figure:
    """What ran where, as in D-STACK's Figure 9: width is time, height is share, colour the model.

    Times are from the start of the measured span. Tiles are stacked from the bottom, each as low
    as what runs beside it lets it lie. A dashed line is a model's SLO, counted from the left edge.
    """
    figure, axes = _figure(max(1, len(record.gpus)))
    models = sorted({run.model for run in record.executions})
    colours = model_colours(models)
    used = utilisation(record)
    slos_ms = {one.model: one.deadline_ms - one.arrived_ms for one in record.served}
    for gpu, ax in zip(record.gpus, axes, strict=True):
        runs = [
            run
            for run in record.executions
            if run.gpu == gpu
            and run.ended_ms > record.from_ms + from_ms
            and run.started_ms < record.from_ms + until_ms
        ]
        stacked = _stacked(runs[:_MOST_TILES])
        for run, pieces in stacked:
            span_ms = (run.started_ms - record.from_ms, run.ended_ms - run.started_ms)
            for piece in pieces:
                ax.broken_barh(
                    [span_ms], piece, facecolor=colours[run.model], edgecolor="white", linewidth=0.4
                )
        ax.set_xlim(from_ms, until_ms)
        ax.set_ylim(0, max([100, *(sum(piece) for _, pieces in stacked for piece in pieces)]))
        _labels(ax, "ms", f"{gpu}: share %")
        for model, slo_ms in slos_ms.items():
            if model in models and from_ms + slo_ms < until_ms:
                ax.axvline(from_ms + slo_ms, color=colours[model], linestyle="--", linewidth=0.8)
        ax.set_title(f"{gpu}: {100 * used[gpu]:.0f} % used over the run", fontsize=9)
    for model in models:
        axes[0].plot([], [], color=colours[model], linewidth=6, label=model)
    axes[0].plot([], [], color="grey", linestyle="--", linewidth=0.8, label="SLO, from the left")
    lines = max(8, 8 * len(record.gpus))  # that the drawing is high enough for
    figure.legend(
        loc="outside right upper", fontsize=7, ncols=max(1, -(-(len(models) + 1) // lines))
    )
    return figure


def against_load(goodput_rps: Mapping[str, Sequence[tuple[float, float]]]) -> Figure:
    """Goodput against offered load, requests per second, a line a system."""
    figure, axes = _figure(1)
    highest = 0.0
    for name, points in goodput_rps.items():
        offered, served = zip(*sorted(points), strict=True)
        highest = max(highest, *offered)
        axes[0].plot(offered, served, marker="o", markersize=3, label=name)
    axes[0].plot([0, highest], [0, highest], color="grey", linestyle="--", linewidth=0.8)
    _labels(axes[0], "offered, requests/s", "in time, requests/s")
    axes[0].legend()
    return figure


def accelerators(records: Mapping[str, RunRecord]) -> Figure:
    """Accelerators that held a partition, over time."""
    figure, axes = _figure(1)
    for name, record in records.items():
        steps = [*gpus_over_time(record), (record.until_ms - record.from_ms, 0)]
        times = [at_ms / 1000.0 for at_ms, _ in steps]
        counts = [count for _, count in steps[:-1]]
        axes[0].step(times, [*counts, counts[-1] if counts else 0], where="post", label=name)
    _labels(axes[0], "s", "accelerators in use")
    axes[0].set_ylim(bottom=0)
    axes[0].legend()
    return figure


def _figure(rows: int) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure  # no window system is touched this way

    figure = Figure(figsize=(7.0, 3.6 if rows == 1 else 1.9 * rows), layout="constrained")
    axes = figure.subplots(rows, 1, squeeze=False)
    return figure, [axes[row][0] for row in range(rows)]


def _labels(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.25)


def _stacked(runs: Sequence[Execution]) -> list[tuple[Execution, _Pieces]]:
    """Each run with the lowest places, in percent, where nothing that overlaps it lies."""
    placed: list[tuple[Execution, _Pieces]] = []
    live: list[tuple[Execution, _Pieces]] = []
    for run in sorted(runs, key=lambda run: (run.started_ms, run.ended_ms)):
        live = [one for one in live if one[0].ended_ms > run.started_ms + 1e-9]
        taken = sorted(piece for _, pieces in live for piece in pieces)
        live.append((run, _free(taken, run.share_pct)))
        placed.append(live[-1])
    return placed


def _free(taken: Sequence[tuple[int, int]], share_pct: int) -> _Pieces:
    """The lowest gap that holds the share, or several: what fits on the GPU fits in the drawing."""
    gaps: list[tuple[int, int]] = []
    low = 0
    for bottom, height in taken:
        gaps += [(low, bottom - low)] if bottom > low else []
        low = max(low, bottom + height)
    gaps += [(low, 100 - low)] if low < 100 else []
    for bottom, height in gaps:
        if height >= share_pct:
            return ((bottom, share_pct),)
    pieces = []
    for bottom, height in [*gaps, (max(low, 100), share_pct)]:
        pieces.append((bottom, min(height, share_pct)))
        share_pct -= pieces[-1][1]
        if not share_pct:
            break
    return tuple(pieces)
