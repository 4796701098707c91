"""VGG-19 (Simonyan and Zisserman, "Very Deep Convolutional Networks", ICLR 2015, column E)."""

import torch
from torch import nn

INPUTS = {"image": ("FP32", (3, 224, 224))}
OUTPUTS = {"logits": ("FP32", (1000,))}

STAGES = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))


def create_model() -> nn.Module:
    """143 667 240 parameters."""
    torch.manual_seed(19)
    parts: list[nn.Module] = []
    inner = 3
    for width, depth in STAGES:
        for _ in range(depth):
            parts += [nn.Conv2d(inner, width, 3, padding=1), nn.ReLU()]
            inner = width
        parts.append(nn.MaxPool2d(2))
    parts += [nn.Flatten(), nn.Linear(512 * 7 * 7, 4096), nn.ReLU()]
    parts += [nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)]
    for part in parts:
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(*parts)
