"""Pooling: each mode against the sum written out, and its law: padding changes nothing."""

import json
from itertools import product
from pathlib import Path

import pytest
import torch

from interlace.formats.huggingface import read_pooling

TOKENS = torch.tensor([[[1.0, -2.0], [3.0, 4.0]]])
WANTED = {
    "cls_token": [1.0, -2.0],
    "mean_tokens": [2.0, 1.0],
    "max_tokens": [3.0, 4.0],
    "mean_sqrt_len_tokens": [4.0 / 2**0.5, 2.0 / 2**0.5],
    "weightedmean_tokens": [7.0 / 3.0, 2.0],
    "lasttoken": [3.0, 4.0],
}


def written(folder: Path, *modes: str) -> Path:
    place = folder / "1_Pooling"
    place.mkdir(parents=True, exist_ok=True)
    config = {f"pooling_mode_{mode}": mode in modes for mode in WANTED}
    (place / "config.json").write_text(json.dumps({"word_embedding_dimension": 2, **config}))
    return folder


@pytest.mark.parametrize("mode", WANTED)
def test_each_mode_whatever_the_padding(tmp_path: Path, mode: str) -> None:
    pooling = read_pooling(written(tmp_path, mode))
    assert pooling is not None
    positions = 1 if mode == "weightedmean_tokens" else 3  # which are its weights
    for before, after in product(range(positions), range(4)):
        tokens = torch.nn.functional.pad(TOKENS, (0, 0, before, after), value=7.0)
        mask = torch.nn.functional.pad(torch.tensor([[1, 1]]), (before, after))
        assert torch.allclose(pooling(tokens, mask), torch.tensor([WANTED[mode]]))


def test_modes_are_joined(tmp_path: Path) -> None:
    pooling = read_pooling(written(tmp_path, "mean_tokens", "max_tokens"))
    assert pooling is not None
    assert pooling(TOKENS, torch.tensor([[1, 1]])).tolist() == [[2.0, 1.0, 3.0, 4.0]]


def test_a_folder_without_pooling_asks_for_none(tmp_path: Path) -> None:
    assert read_pooling(tmp_path) is None
