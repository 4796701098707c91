"""ResNet-50 (He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, Table 1).

The stride lies in the 3 x 3 convolutions, as in what everybody calls version 1.5.
"""

import torch
from torch import nn

from .residual import bottleneck, network

INPUTS = {"image": ("FP32", (3, 224, 224))}
OUTPUTS = {"logits": ("FP32", (1000,))}

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))


def create_model() -> nn.Module:
    """25 557 032 parameters."""
    torch.manual_seed(50)
    stages, inner = [], 64
    for width, depth in STAGES:
        first = bottleneck(inner, width, 1 if width == 64 else 2)
        inner = 4 * width
        stages.append([first, *(bottleneck(inner, width, 1) for _ in range(1, depth))])
    return network(stages, inner)
