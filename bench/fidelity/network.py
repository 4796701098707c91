"""A network of linear layers as a model of a repository: how much it computes is known."""

from pathlib import Path
from typing import Final

_MODEL: Final = """
import torch

INPUTS = {{"x": ("FP32", ({width},))}}
OUTPUTS = {{"y": ("FP32", ({width},))}}


def create_model():
    torch.manual_seed(0)
    layers = []
    for _ in range({layers}):
        layers += [torch.nn.Linear({width}, {width}), {after}]
    return torch.nn.Sequential(*layers)
"""


def network(width: int, layers: int, after: str = "") -> str:
    """The ``model.py`` of that many layers of width x width weights; ``after`` follows each."""
    return _MODEL.format(width=width, layers=layers, after=after)


def write_network(root: Path, source: str, terms: str, name: str = "network") -> None:
    """A model of that source under ``root``; ``terms`` are the lines of its ``interlace.toml``."""
    folder = root / name
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(source)
    (folder / "interlace.toml").write_text(terms)
