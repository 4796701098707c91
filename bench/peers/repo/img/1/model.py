"""A model that answers its input: what is left is the server."""

import torch


class Same(torch.nn.Module):
    """The input itself, uncopied."""

    def forward(self, INPUT: torch.Tensor) -> torch.Tensor:
        return INPUT


def create_model() -> torch.nn.Module:
    return Same()
