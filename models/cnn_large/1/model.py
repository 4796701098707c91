"""A 50-layer bottleneck network for 128 x 128 images, with seeded random weights."""

from __future__ import annotations

import torch
from torch import nn

INPUTS = {"image": ("FP32", (3, 128, 128))}
OUTPUTS = {"logits": ("FP32", (1000,))}

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
EXPANSION = 4


class Block(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions beside a shortcut (bottleneck of ResNet-50)."""

    def __init__(self, inner: int, width: int, stride: int) -> None:
        super().__init__()
        outer = width * EXPANSION
        self.narrow = nn.Conv2d(inner, width, 1)
        self.middle = nn.Conv2d(width, width, 3, stride, 1)
        self.widen = nn.Conv2d(width, outer, 1)
        same = inner == outer and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inner, outer, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.narrow(x))
        y = self.widen(torch.relu(self.middle(y)))
        return torch.relu(y + self.shortcut(x))


class Network(nn.Module):
    """Images (rows, 3, 128, 128) to class scores (rows, 1000). Batch norm is folded away."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        blocks: list[nn.Module] = []
        inner = 64
        for stage, (width, depth) in enumerate(STAGES):
            for place in range(depth):
                stride = 2 if stage and place == 0 else 1
                blocks.append(Block(inner, width, stride))
                inner = width * EXPANSION
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inner, 1000)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        y = self.blocks(self.stem(image))
        return self.head(y.mean((2, 3)))


def create_model() -> nn.Module:
    """The network, its weights channels-last, which CPUs are faster with."""
    torch.manual_seed(50)
    return Network().to(memory_format=torch.channels_last)
