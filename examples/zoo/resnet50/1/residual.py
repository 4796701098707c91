"""Residual networks: ResNet (He et al., CVPR 2016) and ResNeXt (Xie et al., CVPR 2017)."""

from collections.abc import Sequence

import torch
from torch import nn


def norm_conv(inner: int, outer: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution that keeps the picture's size but for ``stride``, and a batch norm."""
    conv = nn.Conv2d(inner, outer, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outer))


class Residual(nn.Module):
    """relu(body(x) + shortcut(x)); the shortcut is a 1 x 1 convolution where the shape changes."""

    def __init__(self, body: nn.Sequential, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.body = body
        same = inner == outer and stride == 1
        self.shortcut = nn.Identity() if same else norm_conv(inner, outer, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def basic(inner: int, width: int, stride: int) -> Residual:
    """Two 3 x 3 convolutions."""
    first, second = norm_conv(inner, width, 3, stride), norm_conv(width, width, 3)
    return Residual(nn.Sequential(first, nn.ReLU(), second), inner, width, stride)


def bottleneck(inner: int, width: int, stride: int, groups: int = 1, part: int = 64) -> Residual:
    """1 x 1, 3 x 3 and 1 x 1 convolutions, the last four times as wide as the stage.

    The one in the middle has ``groups`` groups of ``part`` / 64 of the stage's width.
    """
    middle, outer = width * part // 64 * groups, 4 * width
    body = nn.Sequential(
        norm_conv(inner, middle, 1),
        nn.ReLU(),
        norm_conv(middle, middle, 3, stride, groups),
        nn.ReLU(),
        norm_conv(middle, outer, 1),
    )
    return Residual(body, inner, outer, stride)


def network(stages: Sequence[Sequence[Residual]], outer: int) -> nn.Sequential:
    """Pictures (rows, 3, 224, 224) to scores of classes (rows, 1000), random weights.

    Batch norms that end a branch are small, so that sums stay small over all blocks.
    """
    stem = nn.Sequential(norm_conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    blocks = [block for stage in stages for block in stage]
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(outer, 1000))
    for block in blocks:
        nn.init.constant_(block.body[-1][1].weight, 0.3)
    for part in (*stem.modules(), *(one for block in blocks for one in block.modules())):
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(stem, *blocks, head)
