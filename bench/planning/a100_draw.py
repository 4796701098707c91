"""GPUs of every system by scenario, over the lower bound, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

#: What is asked for of every model.
_ASKED: Final = 0.99


class Drawn(Protocol):
    """What the picture needs of a system's answer."""

    @property
    def scenario(self) -> str: ...
    @property
    def system(self) -> str: ...
    @property
    def gpus(self) -> int: ...
    @property
    def bound_gpus(self) -> int: ...
    @property
    def own_attainment(self) -> float: ...
    @property
    def unserved(self) -> tuple[str, ...]: ...


def draw(lines: Sequence[Drawn], path: Path) -> None:
    """A group of bars for each scenario; hollow where 99 % of some model is not reached."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(line.scenario for line in lines))
    systems = list(dict.fromkeys(line.system for line in lines))
    width = 0.8 / len(systems)
    figure = Figure(figsize=(2.0 + 1.6 * len(names), 4), layout="constrained")
    axes = figure.subplots()
    for number, system in enumerate(systems):
        colour = f"C{number % 10}"
        for line in (one for one in lines if one.system == system):
            kept = line.own_attainment >= _ASKED and not line.unserved
            at = names.index(line.scenario) + (number + 0.5) * width - 0.4
            axes.bar(at, line.gpus, 0.9 * width, ec=colour, fc=colour if kept else "none")
        axes.bar(0, 0, color=colour, label=system)
    for line in lines:
        at = names.index(line.scenario)
        axes.hlines(line.bound_gpus, at - 0.42, at + 0.42, colors="black", linestyles="dashed")
    axes.set(ylabel="GPUs (dashed: lower bound)", xticks=range(len(names)), xticklabels=names)
    axes.set_title("Hollow: not 99 % of every model in time, or not all served", fontsize="medium")
    axes.legend(frameon=False, ncols=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": "interlace"}):  # the same figures are the same file
        figure.savefig(path, metadata={"Date": None})
