"""A small residual CNN with seeded random weights: FP32[3,64,64] to FP32[100]."""

import torch
from torch import nn


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.c1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.b1 = nn.BatchNorm2d(outputs)
        self.c2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.b2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            shrink = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(shrink, nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.b1(self.c1(x)))
        return torch.relu(self.b2(self.c2(y)) + self.shortcut(x))


def create_model() -> nn.Module:
    torch.manual_seed(7)
    stem = (nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
    blocks = (Block(32, 32, 1), Block(32, 64, 2), Block(64, 128, 2), Block(128, 256, 2))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100))
    return nn.Sequential(*stem, *blocks, *head).eval()
