"""AlexNet for one GPU (Krizhevsky, "One weird trick for parallelizing CNNs", 2014)."""

import torch
from torch import nn

INPUTS = {"image": ("FP32", (3, 224, 224))}
OUTPUTS = {"logits": ("FP32", (1000,))}


def create_model() -> nn.Module:
    """61 100 840 parameters."""
    torch.manual_seed(8)
    network = nn.Sequential(
        *(nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(192, 384, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(384, 256, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2)),
        nn.Flatten(),
        *(nn.Linear(256 * 6 * 6, 4096), nn.ReLU()),
        *(nn.Linear(4096, 4096), nn.ReLU()),
        nn.Linear(4096, 1000),
    )
    for part in network:
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight)
    return network
