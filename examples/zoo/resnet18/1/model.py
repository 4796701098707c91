"""ResNet-18 (He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, Table 1)."""

import torch
from torch import nn

from .residual import basic, network

INPUTS = {"image": ("FP32", (3, 224, 224))}
OUTPUTS = {"logits": ("FP32", (1000,))}

WIDTHS = (64, 128, 256, 512)


def create_model() -> nn.Module:
    """11 689 512 parameters."""
    torch.manual_seed(18)
    stages, inner = [], 64
    for width in WIDTHS:
        stages.append([basic(inner, width, 1 if width == 64 else 2), basic(width, width, 1)])
        inner = width
    return network(stages, inner)
