"""People and cars of a picture, cut out: none, one or two of each, as a network's scores say.

The networks of the zoo have random weights; what stands for boxes is their highest score.
"""

import torch
from torch import nn
from torch.nn.functional import interpolate

INPUTS = {"image": ("FP32", (3, 224, 224)), "logits": ("FP32", (1000,))}
OUTPUTS = {"people": ("FP32", (-1, 3, 224, 224)), "cars": ("FP32", (-1, 3, 224, 224))}
BATCHED = False

SIDE = 112


class Crops(nn.Module):
    """A picture and its scores to two tensors of crops; each may have no rows."""

    def forward(self, image: torch.Tensor, logits: torch.Tensor) -> dict[str, torch.Tensor]:
        best = int(logits.argmax())
        corners = [(top, left) for top in (0, SIDE) for left in (0, SIDE)]
        boxes = torch.stack([image[:, t : t + SIDE, left : left + SIDE] for t, left in corners])
        crops = interpolate(boxes, size=(224, 224))
        return {"people": crops[: best % 3], "cars": crops[2 : 2 + best // 3 % 3]}


def create_model() -> nn.Module:
    """No parameters."""
    return Crops()
