"""ResNeXt-50, 32 groups of 4 (Xie et al., "Aggregated Residual Transformations", CVPR 2017)."""

import torch
from torch import nn

from .residual import bottleneck, network

INPUTS = {"image": ("FP32", (3, 224, 224))}
OUTPUTS = {"logits": ("FP32", (1000,))}

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
GROUPS, PART = 32, 4


def create_model() -> nn.Module:
    """25 028 904 parameters."""
    torch.manual_seed(32)
    stages, inner = [], 64
    for width, depth in STAGES:
        first = bottleneck(inner, width, 1 if width == 64 else 2, GROUPS, PART)
        inner = 4 * width
        rest = (bottleneck(inner, width, 1, GROUPS, PART) for _ in range(1, depth))
        stages.append([first, *rest])
    return network(stages, inner)
