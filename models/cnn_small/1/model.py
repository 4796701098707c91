"""An 18-layer residual network for 64 x 64 images, with seeded random weights."""

from __future__ import annotations

import torch
from torch import nn

INPUTS = {"image": ("FP32", (3, 64, 64))}
OUTPUTS = {"logits": ("FP32", (1000,))}

WIDTHS = (64, 128, 256, 512)


class Block(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut (basic block of ResNet-18)."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inner, outer, 3, stride, 1)
        self.second = nn.Conv2d(outer, outer, 3, 1, 1)
        same = inner == outer and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inner, outer, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(torch.relu(self.first(x)))
        return torch.relu(y + self.shortcut(x))


class Network(nn.Module):
    """Images (rows, 3, 64, 64) to class scores (rows, 1000). Batch norm is folded away."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        blocks: list[nn.Module] = []
        inner = WIDTHS[0]
        for stage, width in enumerate(WIDTHS):
            blocks += [Block(inner, width, 2 if stage else 1), Block(width, width, 1)]
            inner = width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inner, 1000)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        y = self.blocks(self.stem(image))
        return self.head(y.mean((2, 3)))


def create_model() -> nn.Module:
    """The network, its weights channels-last, which CPUs are faster with."""
    torch.manual_seed(18)
    return Network().to(memory_format=torch.channels_last)
