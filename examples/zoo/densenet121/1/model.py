"""DenseNet-121 (Huang et al., "Densely Connected Convolutional Networks", CVPR 2017, Table 1)."""

import torch
from torch import nn

INPUTS = {"image": ("FP32", (3, 224, 224))}
OUTPUTS = {"logits": ("FP32", (1000,))}

DEPTHS = (6, 12, 24, 16)
GROWTH = 32


def conv_norm(inner: int, outer: int, size: int) -> nn.Sequential:
    """Batch norm, ReLU, convolution: in this order here."""
    conv = nn.Conv2d(inner, outer, size, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight)
    return nn.Sequential(nn.BatchNorm2d(inner), nn.ReLU(), conv)


class Dense(nn.Module):
    """The input, and beside it ``GROWTH`` new channels."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.body = nn.Sequential(conv_norm(inner, 4 * GROWTH, 1), conv_norm(4 * GROWTH, GROWTH, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.body(x)], 1)


def create_model() -> nn.Module:
    """7 978 856 parameters."""
    torch.manual_seed(121)
    stem = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
    parts = [stem, nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inner = 64
    for place, depth in enumerate(DEPTHS):
        if place:  # halve the channels and the picture
            parts += [conv_norm(inner, inner // 2, 1), nn.AvgPool2d(2)]
            inner //= 2
        parts += [Dense(inner + GROWTH * step) for step in range(depth)]
        inner += GROWTH * depth
    parts += [nn.BatchNorm2d(inner), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(inner, 1000))
