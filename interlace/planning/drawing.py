"""Pictures of plans, of variants of a scenario, and of simulations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Final, NamedTuple

from interlace.core.figure_file import check_figure_path, model_colours, save_figure
from interlace.core.plan import Partition, Slot
from interlace.planning.capacity_plan import CapacityPlan
from interlace.planning.simulation import SimulationResult
from interlace.sim.drawings import accelerators, against_load, by_model, latency_cdf, tiles
from interlace.sim.report import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_BLOCKS: Final = 32
_MOST_NAMES: Final = 40
_COLUMNS: Final = 4
_LEAST_WIDTH: Final = 7.5  #: inches; a title and a legend beside it
_LETTERS_ACROSS: Final = 0.52  #: letters of a label in one percent of a block's width
_LETTERS_UP: Final = 38  #: letters in its height


class _Block(NamedTuple):
    """One GPU's partitions, and how many GPUs look like that."""

    gpus: tuple[str, ...]
    partitions: tuple[Partition, ...]


def draw_plan(found: CapacityPlan, path: Path) -> None:
    """Write the picture to ``path``, SVG or PNG by its suffix.

    Raises:
        InputError: another suffix.
        OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    check_figure_path(path)
    blocks = _blocks(found)
    shown = blocks[:_MOST_BLOCKS]
    columns = min(_COLUMNS, max(1, len(shown)))
    rows = max(1, -(-len(shown) // columns))
    width = max(3.6 * columns + 1.8, _LEAST_WIDTH)
    figure = Figure(figsize=(width, 2.6 * rows + 1.1), layout="constrained")
    colours = model_colours([one.model for one in found.scenario.demand])
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis, block in zip(axes.flat, shown, strict=False):
        _draw_block(axis, block, found, colours)
    for axis in axes.flat[len(shown) :]:
        axis.set_axis_off()
    more = (
        f", {len(blocks) - len(shown)} more kinds of GPU not drawn" if blocks[len(shown) :] else ""
    )
    between = "; " if columns > 2 else "\n"
    figure.suptitle(between.join(_title(found)) + more, fontsize=11 if columns > 2 else 9)
    _legend(figure, found, colours)
    save_figure(figure, path)


def draw_what_ifs(found: Mapping[str, CapacityPlan], path: Path) -> None:
    """GPUs of each variant beside their lower bound, and what they cost.

    Raises:
        InputError: the suffix is neither .svg nor .png.
        OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    check_figure_path(path)
    answers = list(found.values())
    places = range(len(found))
    figure = Figure(figsize=(2 + 0.9 * len(found), 3.6), layout="constrained")
    axis = figure.subplots()
    gpus = [one.gpus for one in answers]
    axis.bar(places, gpus, color="#8fb8de", label="GPUs in the plan")
    axis.plot(places, [one.bound.gpus for one in answers], "k_", markersize=22, label="lower bound")
    for place, one in zip(places, answers, strict=True):
        cost = "" if one.cost_per_hour is None else f"\n{one.cost_per_hour:.2f}/h"
        short = "" if one.served else "\nnot all served"
        axis.text(place, one.gpus, f"{one.gpus}{cost}{short}", ha="center", va="bottom", fontsize=7)
    axis.set_xticks(places, list(found), rotation=30, ha="right", fontsize=8)
    axis.set_ylim(0, max([*gpus, 1]) * 1.3)
    axis.set_ylabel("GPUs")
    axis.set_title(f"GPUs needed by {answers[0].system}", fontsize=10, loc="right")
    axis.legend(fontsize=7, loc="upper left")
    save_figure(figure, path)


def _title(found: CapacityPlan) -> tuple[str, str]:
    """What is used, and what would be used at least."""
    cost = "" if found.cost_per_hour is None else f", {found.cost_per_hour:.2f} an hour"
    lost = len(found.plan.underserved)
    rest = f", {lost} model{'s' if lost > 1 else ''} not served in full" if lost else ""
    gap = f", gap {found.gpus - found.bound.gpus}" if not lost else ""
    return (
        f"{found.gpus} x {found.scenario.gpu.kind} by {found.system}{cost}",
        f"no scheduler needs fewer than {found.bound.gpus}{gap}{rest}",
    )


def _blocks(found: CapacityPlan) -> list[_Block]:
    """GPUs in the plan's order, or beyond 32 of them those alike together, the most first."""
    by_gpu: dict[str, list[Partition]] = {}
    for part in found.plan.partitions:
        by_gpu.setdefault(part.gpu, []).append(part)
    if len(by_gpu) <= _MOST_BLOCKS:
        return [_Block((gpu,), tuple(parts)) for gpu, parts in by_gpu.items()]
    alike: dict[object, list[str]] = {}
    for gpu, parts in by_gpu.items():
        key = tuple((p.share_pct, tuple((s.model, s.batch) for s in p.slots)) for p in parts)
        alike.setdefault(key, []).append(gpu)
    often = sorted(alike.values(), key=len, reverse=True)
    return [_Block(tuple(gpus), tuple(by_gpu[gpus[0]])) for gpus in often]


def _draw_block(
    axis: Axes,
    block: _Block,
    found: CapacityPlan,
    colours: Mapping[str, tuple[float, float, float]],
) -> None:
    """Shares fill the width, time the height; white is left for bursts, hatched no partition."""
    from matplotlib.patches import Rectangle

    left = 0.0
    for part in sorted(block.partitions, key=lambda p: -p.share_pct):
        _draw_tile(axis, left, part, found, colours)
        left += part.share_pct
    if left < 98:
        axis.add_patch(
            Rectangle((left, 0), 100 - left, 1, facecolor="#f2f2f2", edgecolor="#999", hatch="///")
        )
    axis.set_xlim(0, 100)
    axis.set_ylim(0, 1)
    axis.set_yticks([0, 0.5, 1], ["0", "50", "100"])
    axis.tick_params(labelsize=7)
    times = f" (and {len(block.gpus) - 1} alike)" if len(block.gpus) > 1 else ""
    axis.set_title(f"{block.gpus[0]}{times}", fontsize=9, loc="left")


def _draw_tile(
    axis: Axes,
    left: float,
    part: Partition,
    found: CapacityPlan,
    colours: Mapping[str, tuple[float, float, float]],
) -> None:
    from matplotlib.patches import Rectangle

    bottom = 0.0
    for slot in part.slots:
        height = min(found.busy(part, slot), 1.0 - bottom)
        box = Rectangle((left, bottom), part.share_pct, height, facecolor=colours[slot.model])
        axis.add_patch(box)
        _label(axis, slot, (left + part.share_pct / 2, bottom + height / 2), part, height)
        bottom += height
    axis.add_patch(
        Rectangle((left, 0), part.share_pct, 1, fill=False, edgecolor="black", linewidth=1.2)
    )


def _label(
    axis: Axes, slot: Slot, centre: tuple[float, float], part: Partition, height: float
) -> None:
    """As much of name, batch and rate as there is room for; nothing in slivers."""
    fitting = _fitting(slot, part.share_pct * _LETTERS_ACROSS, height * _LETTERS_UP)
    if fitting is None:
        return
    text, upright = fitting
    axis.text(
        *centre,
        text,
        ha="center",
        va="center",
        fontsize=6.5,
        rotation=90 if upright else 0,
        clip_on=True,
    )


def _fitting(slot: Slot, across: float, up: float) -> tuple[str, bool] | None:
    """The fullest text that fits a box measured in letters, and if it must stand upright."""
    full = f"{slot.model} b{slot.batch} {slot.rows_per_s:.0f}/s"
    two_lines = full.replace(" ", "\n", 1)
    for text, upright in (
        (two_lines, False),
        (full, True),
        (slot.model, False),
        (slot.model, True),
    ):
        lines = text.split("\n")
        size = (max(map(len, lines)), 2 * len(lines))  # a line is two letters high
        wide, high = reversed(size) if upright else size
        if wide <= across and high <= up:
            return text, upright
    return None


def _legend(
    figure: Figure, found: CapacityPlan, colours: Mapping[str, tuple[float, float, float]]
) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(
            facecolor=colours[one.model],
            label=f"{one.model} {one.rows_per_s:g}/s, {one.slo_ms:g} ms",
        )
        for one in found.scenario.demand
        if one.rows_per_s > 0
    ]
    if handles[_MOST_NAMES:]:
        left = Patch(visible=False, label=f"and {len(handles) - _MOST_NAMES} more")
        handles = [*handles[:_MOST_NAMES], left]
    figure.legend(handles=handles, loc="outside right upper", fontsize=7, title="model, rate, SLO")
    figure.supxlabel("share of the GPU in %; b8: batches of up to 8", fontsize=8)
    figure.supylabel("time in use in %", fontsize=8)


#: What can be drawn.
KINDS: Final = ("cdf", "tiles", "load", "gpus")
_TILES_MS: Final = 250.0


def draw_runs(kind: str, path: Path, runs: Sequence[SimulationResult]) -> None:
    """Draw runs: each system's first one, for tiles the beginning of the first of all.

    Latency is drawn a line a model where there is one system; goodput is the mean of all seeds.
    """
    records = {run.system: run.record for run in reversed(runs)}
    if kind == "cdf":
        figure = latency_cdf(records if len(records) > 1 else by_model(runs[0].record))
    elif kind == "tiles":
        figure = tiles(runs[0].record, 0.0, _TILES_MS)
    elif kind == "gpus":
        figure = accelerators(records)
    else:
        figure = against_load(_goodput_rps(runs))
    save_figure(figure, path)


def _goodput_rps(runs: Sequence[SimulationResult]) -> dict[str, list[tuple[float, float]]]:
    """Offered and in time, means over seeds, of every system and load."""
    by_load: dict[tuple[str, float], list[Report]] = {}
    for run in runs:
        by_load.setdefault((run.system, run.settings.load), []).append(run.report)
    points: dict[str, list[tuple[float, float]]] = {}
    for (system, _), reports in by_load.items():
        offered = mean(one.offered_rps for one in reports)
        points.setdefault(system, []).append((offered, mean(one.goodput_rps for one in reports)))
    return points
