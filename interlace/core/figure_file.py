"""Drawings in files: SVG or PNG, the same drawing always the same file."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from interlace.core.user_errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def check_figure_path(path: Path) -> None:
    """Refuse what is neither SVG nor PNG, and any drawing where matplotlib is not installed.

    Raises:
        InputError: another suffix.
        ModuleNotFoundError: there is no matplotlib.
    """
    if find_spec("matplotlib") is None:
        raise ModuleNotFoundError("drawings need matplotlib", name="matplotlib")
    if path.suffix not in (".svg", ".png"):
        raise InputError(f"{path}: expected the name of a drawing, which ends in .svg or .png")


def model_colours(models: Sequence[str]) -> dict[str, tuple[float, float, float]]:
    """One colour a model, neighbours in the list far apart on the wheel, dark text readable."""
    from matplotlib.colors import hsv_to_rgb

    golden = 0.61803398875
    colours = {}
    for index, model in enumerate(models):
        # Beyond a dozen hues two are too near: the next dozens are stronger, then pale.
        saturation, value = ((0.45, 0.95), (0.85, 0.75), (0.25, 0.8))[index // 12 % 3]
        red, green, blue = hsv_to_rgb(((0.08 + index * golden) % 1.0, saturation, value)).tolist()
        colours[model] = (red, green, blue)
    return colours


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure, and the folder it lies in; text in SVG stays text.

    Raises:
        InputError: the suffix is neither .svg nor .png.
        OSError: the file cannot be written.
    """
    from matplotlib import rc_context

    check_figure_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "interlace"}):
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
