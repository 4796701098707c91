"""LeNet-5 (LeCun et al., "Gradient-Based Learning Applied to Document Recognition", 1998)."""

import torch
from torch import nn

INPUTS = {"image": ("FP32", (1, 28, 28))}
OUTPUTS = {"logits": ("FP32", (10,))}


def create_model() -> nn.Module:
    """61 706 parameters."""
    torch.manual_seed(5)
    first = nn.Sequential(nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2))
    second = nn.Sequential(nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten())
    head = nn.Sequential(nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh())
    return nn.Sequential(first, second, head, nn.Linear(84, 10))
