"""Pooling: each mode against the sum written out, and its law: padding changes nothing."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.formats.huggingface import read_pooling

TOKENS = torch.tensor([[[1.0, -2.0], [3.0, 4.0], [9.0, 9.0]]])
MASK = torch.tensor([[1, 1, 0]])
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
def test_each_mode(tmp_path: Path, mode: str) -> None:
    pooling = read_pooling(written(tmp_path, mode))
    assert pooling is not None
    assert torch.allclose(pooling(TOKENS, MASK), torch.tensor([WANTED[mode]]))


def test_modes_are_joined(tmp_path: Path) -> None:
    pooling = read_pooling(written(tmp_path, "mean_tokens", "max_tokens"))
    assert pooling is not None
    assert pooling(TOKENS, MASK).tolist() == [[2.0, 1.0, 3.0, 4.0]]


@given(mode=st.sampled_from(sorted(WANTED)), before=st.integers(0, 2), after=st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_padding_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, mode: str, before: int, after: int
) -> None:
    if mode == "weightedmean_tokens" and before:
        return  # positions are its weights
    pooling = read_pooling(written(tmp_path_factory.mktemp("p"), mode))
    assert pooling is not None
    tokens = torch.nn.functional.pad(TOKENS[:, :2], (0, 0, before, after), value=7.0)
    mask = torch.nn.functional.pad(MASK[:, :2], (before, after))
    assert torch.allclose(pooling(tokens, mask), torch.tensor([WANTED[mode]]))


def test_a_folder_without_pooling_asks_for_none(tmp_path: Path) -> None:
    assert read_pooling(tmp_path) is None
