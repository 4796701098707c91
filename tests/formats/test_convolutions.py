"""Folded, channels-last convolutions: same results, or the module as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from interlace.formats.factory import with_fast_convolutions


class Shaped(nn.Module):
    """A convolution, batch norm, and what ``after`` does with the result."""

    def __init__(self, after: str) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.after = after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.conv(x))
        match self.after:
            case "view":  # fails on channels-last memory
                return y.view(len(y), -1)
            case "branch":  # cannot be traced
                return y if y.sum() > 0 else -y
            case "again":  # the convolution has another user
                return y + self.conv(x)
            case "nan":
                return y / 0 * 0
        return y


def sample() -> torch.Tensor:
    return torch.rand(2, 3, 9, 7, generator=torch.Generator().manual_seed(0))


def made(after: str) -> nn.Module:
    torch.manual_seed(0)
    module = Shaped(after)
    module.norm.running_mean.uniform_(-1, 1)  # type: ignore[union-attr]
    module.norm.running_var.uniform_(1, 2)  # type: ignore[union-attr]
    return module.eval()


@pytest.mark.parametrize("after", ["", "branch", "again"])
def test_results_stay_the_same(after: str) -> None:
    module = made(after)
    with torch.no_grad():
        wanted = module(sample())
        fast = with_fast_convolutions(module, lambda part: part(sample()))
        assert torch.allclose(fast(sample()), wanted, atol=1e-5)
    assert fast is not module
    norms = [part for part in fast.modules() if isinstance(part, nn.BatchNorm2d)]
    assert bool(norms) == (after != "")
    for part in fast.modules():
        if isinstance(part, nn.Conv2d):
            assert part.weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("after", ["view", "nan"])
def test_what_does_not_work_is_left_as_it_was(after: str) -> None:
    module = made(after)
    assert with_fast_convolutions(module, lambda part: part(sample())) is module
    assert module.conv.weight.is_contiguous()  # type: ignore[union-attr, operator]


def test_modules_without_convolutions_are_not_touched() -> None:
    module = nn.Linear(2, 2)
    assert with_fast_convolutions(module, lambda part: part(torch.ones(1, 2))) is module
