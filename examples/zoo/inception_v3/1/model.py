"""Inception-v3 (Szegedy et al., "Rethinking the Inception Architecture", CVPR 2016, Table 1).

Without the auxiliary classifier, which is for training alone.
"""

import torch
from torch import nn

INPUTS = {"image": ("FP32", (3, 299, 299))}
OUTPUTS = {"logits": ("FP32", (1000,))}

Size = int | tuple[int, int]


def conv(inner: int, outer: int, size: Size, stride: int = 1, padding: Size = 0) -> nn.Sequential:
    """Convolution, batch norm, ReLU."""
    filters = nn.Conv2d(inner, outer, size, stride, padding, bias=False)
    nn.init.kaiming_normal_(filters.weight)
    return nn.Sequential(filters, nn.BatchNorm2d(outer, eps=1e-3), nn.ReLU())


def wide(inner: int, outer: int) -> nn.Sequential:
    """1 x 7."""
    return conv(inner, outer, (1, 7), padding=(0, 3))


def high(inner: int, outer: int) -> nn.Sequential:
    """7 x 1."""
    return conv(inner, outer, (7, 1), padding=(3, 0))


class Beside(nn.Module):
    """Branches that all see the input; their channels side by side."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def pooled(inner: int, outer: int) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), conv(inner, outer, 1))


def mixed_35(inner: int, pool: int) -> Beside:
    """For 35 x 35 (Figure 5)."""
    five = nn.Sequential(conv(inner, 48, 1), conv(48, 64, 5, padding=2))
    twice = (conv(64, 96, 3, padding=1), conv(96, 96, 3, padding=1))
    return Beside(
        conv(inner, 64, 1), five, nn.Sequential(conv(inner, 64, 1), *twice), pooled(inner, pool)
    )


def shrink_35(inner: int) -> Beside:
    """From 35 x 35 to 17 x 17 (Figure 10)."""
    twice = nn.Sequential(conv(inner, 64, 1), conv(64, 96, 3, padding=1), conv(96, 96, 3, 2))
    return Beside(conv(inner, 384, 3, 2), twice, nn.MaxPool2d(3, 2))


def mixed_17(width: int) -> Beside:
    """For 17 x 17: filters of 7 x 7 in two steps (Figure 6)."""
    once = nn.Sequential(conv(768, width, 1), wide(width, width), high(width, 192))
    steps = (high(width, width), wide(width, width), high(width, width), wide(width, 192))
    return Beside(
        conv(768, 192, 1), once, nn.Sequential(conv(768, width, 1), *steps), pooled(768, 192)
    )


def shrink_17() -> Beside:
    """From 17 x 17 to 8 x 8."""
    three = nn.Sequential(conv(768, 192, 1), conv(192, 320, 3, 2))
    seven = nn.Sequential(conv(768, 192, 1), wide(192, 192), high(192, 192), conv(192, 192, 3, 2))
    return Beside(three, seven, nn.MaxPool2d(3, 2))


def mixed_8(inner: int) -> Beside:
    """For 8 x 8: filters of 1 x 3 and 3 x 1 beside each other (Figure 7)."""

    def split() -> Beside:
        return Beside(
            conv(384, 384, (1, 3), padding=(0, 1)), conv(384, 384, (3, 1), padding=(1, 0))
        )

    three = nn.Sequential(conv(inner, 384, 1), split())
    twice = nn.Sequential(conv(inner, 448, 1), conv(448, 384, 3, padding=1), split())
    return Beside(conv(inner, 320, 1), three, twice, pooled(inner, 192))


def create_model() -> nn.Module:
    """23 834 568 parameters."""
    torch.manual_seed(3)
    stem = (conv(3, 32, 3, 2), conv(32, 32, 3), conv(32, 64, 3, padding=1), nn.MaxPool2d(3, 2))
    return nn.Sequential(
        *(*stem, conv(64, 80, 1), conv(80, 192, 3), nn.MaxPool2d(3, 2)),
        *(mixed_35(192, 32), mixed_35(256, 64), mixed_35(288, 64), shrink_35(288)),
        *(mixed_17(128), mixed_17(160), mixed_17(160), mixed_17(192), shrink_17()),
        *(mixed_8(1280), mixed_8(2048)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000)),
    )
