"""MobileNet-v2 (Sandler et al., "Inverted Residuals and Linear Bottlenecks", CVPR 2018)."""

import torch
from torch import nn

INPUTS = {"image": ("FP32", (3, 224, 224))}
OUTPUTS = {"logits": ("FP32", (1000,))}

#: Expansion, width, blocks, and stride of the first.
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
LAST = 1280


def norm_conv(inner: int, outer: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inner, outer, size, stride, size // 2, groups=groups, bias=False)
    nn.init.kaiming_normal_(conv.weight)
    return nn.Sequential(conv, nn.BatchNorm2d(outer))


class Inverted(nn.Module):
    """Widen, filter each channel for itself, narrow; added to its input if that has its shape."""

    def __init__(self, inner: int, outer: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inner * expansion
        widen = [norm_conv(inner, wide, 1), nn.ReLU6()] if expansion > 1 else []
        filtered = [norm_conv(wide, wide, 3, stride, groups=wide), nn.ReLU6()]
        self.body = nn.Sequential(*widen, *filtered, norm_conv(wide, outer, 1))
        self.added = inner == outer and stride == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        return x + y if self.added else y


def create_model() -> nn.Module:
    """3 504 872 parameters."""
    torch.manual_seed(2)
    parts: list[nn.Module] = [norm_conv(3, 32, 3, 2), nn.ReLU6()]
    inner = 32
    for expansion, width, depth, stride in STAGES:
        for place in range(depth):
            parts.append(Inverted(inner, width, 1 if place else stride, expansion))
            inner = width
    parts += [norm_conv(inner, LAST, 1), nn.ReLU6()]
    parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(LAST, 1000)]
    return nn.Sequential(*parts)
