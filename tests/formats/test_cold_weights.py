"""A cold start on cores: no operator reads weights before they are there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from time import sleep

import pytest
import torch
from torch import nn

from interlace.formats.cold_weights import ColdWeights, weight_uses
from interlace.formats.weight_uses import WeightUse

ROWS = torch.arange(6).view(2, 3) % 5


class Net(nn.Module):
    """A table, layers made in another order than they run, one that is never run, a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(8, 2)
        self.idle = nn.Linear(8, 8)
        self.first = nn.Linear(8, 8)
        self.table = nn.Embedding(5, 8)
        self.norm = nn.BatchNorm1d(3)
        self.again = nn.Linear(8, 8, bias=False)
        self.again.weight = self.first.weight

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(self.again(self.norm(self.first(self.table(rows)))))
        return y


def cold(folder: Path, net: nn.Module) -> tuple[ColdWeights, Callable[[], torch.Tensor]]:
    weights = dict(net.named_parameters()) | dict(net.named_buffers())

    def run() -> torch.Tensor:
        answer: torch.Tensor = net(ROWS)
        return answer

    return ColdWeights(folder / "weights", weights, weight_uses(weights, run)), run


class Slow(ColdWeights):
    """A link that every layer takes a while on."""

    def copy(self, index: int) -> None:
        sleep(0.005)
        super().copy(index)


@pytest.mark.parametrize("pattern", range(16))
def test_answers_are_the_warm_ones_whatever_is_copied(pattern: int, tmp_path: Path) -> None:
    net = Net().eval()
    with torch.inference_mode():
        wanted = net(ROWS)
        weights, run = cold(tmp_path, net)
        weights.__class__ = Slow
        with closing(weights):
            assert [use.operator for use in weights.uses] == [
                "embedding",
                "linear",
                "batch_norm",
                "linear",
                "",
            ]
            copied = [bool(pattern >> index & 1) for index in range(4)] + [pattern % 2 == 0]
            for _ in range(3):
                weights.spoil()
                weights.forget()
                answers: list[torch.Tensor] = []
                weights.run(lambda: answers.append(run()), copied)  # noqa: B023
                assert torch.equal(answers[0], wanted)
            assert torch.equal(run(), wanted)  # warm from now on


def test_without_the_wait_the_poison_shows(tmp_path: Path) -> None:
    """The test above could not pass by chance: memory that is not waited for spoils the answer."""
    net = Net().eval()
    with torch.inference_mode():
        weights, run = cold(tmp_path, net)
        with closing(weights):
            weights.spoil()
            weights.place([True] * len(weights.uses))
            assert run().isnan().all()
            for index in range(len(weights.uses)):
                weights.copy(index)
            assert not run().isnan().any()


def test_a_file_that_cannot_be_read_is_an_error_and_not_an_answer(tmp_path: Path) -> None:
    net = Net().eval()
    with torch.inference_mode():
        weights, run = cold(tmp_path, net)
        with closing(weights):
            nbytes = (tmp_path / "weights").stat().st_size
            with (tmp_path / "weights").open("r+b") as file:
                file.truncate(nbytes // 4)
            with pytest.raises(OSError, match="it ends at"):
                weights.run(run, [True] * len(weights.uses))


def test_a_model_that_raises_ends_the_copies(tmp_path: Path) -> None:
    net = Net().eval()
    with torch.inference_mode():
        weights, _ = cold(tmp_path, net)
        with closing(weights):

            def fail() -> None:
                net.table(ROWS)
                raise ValueError("the model's own")

            with pytest.raises(ValueError, match="the model's own"):
                weights.run(fail, [True] * len(weights.uses))


def test_uses_name_each_weight_once() -> None:
    net = Net().eval()
    weights = dict(net.named_parameters())
    with torch.inference_mode():
        uses = weight_uses(weights, lambda: net(ROWS))
    names = [name for use in uses for name in use.weights]
    assert sorted(names) == sorted(weights)
    assert uses[-1] == WeightUse("", ("idle.weight", "idle.bias"))
