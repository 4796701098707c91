"""Drawings of runs: latency, tiles on each accelerator, goodput against load, accelerators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from interlace.sim.record import Execution, RunRecord
from interlace.sim.report.latency import ANSWERED
from interlace.sim.report.usage import gpus_over_time, utilisation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS: Final = "tab10"
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
    _labels(axes[0], "latency / SLO", "part of all requests")
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
        for run, bottom_pct in _stacked(runs[:_MOST_TILES]):
            start_ms, took_ms = run.started_ms - record.from_ms, run.ended_ms - run.started_ms
            colour = _colour(models.index(run.model))
            ax.broken_barh(
                [(start_ms, took_ms)],
                (bottom_pct, run.share_pct),
                facecolor=colour,
                edgecolor="white",
                linewidth=0.4,
            )
        ax.set_xlim(from_ms, until_ms)
        ax.set_ylim(0, max(100, *(b + r.share_pct for r, b in _stacked(runs[:_MOST_TILES])), 100))
        _labels(ax, "ms", f"{gpu}: share %")
        for model, slo_ms in slos_ms.items():
            if model in models and from_ms + slo_ms < until_ms:
                colour = _colour(models.index(model))
                ax.axvline(from_ms + slo_ms, color=colour, linestyle="--", linewidth=0.8)
        ax.set_title(f"{gpu}: {100 * used[gpu]:.0f} % used over the run", fontsize=9)
    for index, model in enumerate(models):
        axes[0].plot([], [], color=_colour(index), linewidth=6, label=model)
    axes[0].legend(loc="upper right", fontsize=7, ncols=min(4, max(1, len(models))))
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


def _colour(index: int) -> tuple[float, float, float]:
    from matplotlib import colormaps

    red, green, blue, *_ = colormaps[_COLOURS](index % 10)
    return red, green, blue


def _stacked(runs: Sequence[Execution]) -> list[tuple[Execution, int]]:
    """Each run with the lowest place, in percent, where nothing that overlaps it lies."""
    placed: list[tuple[Execution, int]] = []
    live: list[tuple[Execution, int]] = []
    for run in sorted(runs, key=lambda run: (run.started_ms, run.ended_ms)):
        live = [(r, b) for r, b in live if r.ended_ms > run.started_ms + 1e-9]
        bottom_pct = 0
        for other, low_pct in sorted(live, key=lambda pair: pair[1]):
            if low_pct >= bottom_pct + run.share_pct:
                break
            bottom_pct = max(bottom_pct, low_pct + other.share_pct)
        placed.append((run, bottom_pct))
        live.append((run, bottom_pct))
    return placed
