"""Reading text: the pieces by their laws, the whole with the real models where they are."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from demo import QUESTION, SENTENCES, SIGN, draw_sign, embed
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from ocr import Box, components, decode, padded, read_text
from PIL import Image

from interlace.core.model import Model
from interlace.formats import open_model
from interlace.formats.runner import ModelRunner
from interlace.repository.config_json import config_json
from interlace.repository.draft import read
from interlace.repository.model import complete

MODELS = Path(__file__).resolve().parents[2] / "models"
fetched = pytest.mark.skipif(
    not all((MODELS / name / "1").is_dir() for name in ("detector", "recogniser", "embedder")),
    reason="the example models are not here: run scripts/fetch-models",
)


def flooded(mask: np.ndarray[Any, Any]) -> set[Box]:
    """The same by flood fill, the obvious and slow way."""
    left = {(int(y), int(x)) for y, x in np.argwhere(mask)}
    boxes = set()
    while left:
        area, edge = set(), [left.pop()]
        while edge:
            y, x = edge.pop()
            area.add((y, x))
            near = {(y + a, x + b) for a in (-1, 0, 1) for b in (-1, 0, 1)} & left
            left -= near
            edge += near
        ys, xs = [y for y, _ in area], [x for _, x in area]
        boxes.add(Box(min(xs), min(ys), max(xs) + 1, max(ys) + 1))
    return boxes


@given(arrays(np.bool_, st.tuples(st.integers(1, 9), st.integers(1, 12))))
@settings(max_examples=150, deadline=None)
def test_components_are_those_of_a_flood_fill(mask: np.ndarray[Any, Any]) -> None:
    found = components(mask)
    assert set(found) == flooded(mask)


@given(st.lists(st.integers(1, 3), max_size=6), st.data())
@settings(max_examples=60, deadline=None)
def test_any_spelling_of_a_text_is_read_as_it(text: list[int], data: st.DataObject) -> None:
    steps = [0]
    for character in text:  # blanks between, repeats of each
        steps += [character] * data.draw(st.integers(1, 3)) + [0] * data.draw(st.integers(1, 2))
    scores = np.eye(4, dtype=np.float32)[steps]
    assert decode(scores, "_abc") == ("".join("_abc"[c] for c in text), 1.0 if text else 0.0)


def test_lines_keep_their_proportions() -> None:
    line = padded(Image.new("RGB", (100, 50), (255, 255, 255)), 192)
    assert line.shape == (3, 48, 192)
    assert (line[:, :, :96] == 1.0).all()
    assert (line[:, :, 96:] == 0.0).all()


class Local:
    """The served models without a server, by the demo's way of asking."""

    def __init__(self) -> None:
        self._opened: dict[str, tuple[Model, ModelRunner, dict[str, Any]]] = {}

    def config(self, name: str) -> dict[str, Any]:
        return self._open(name)[2]

    def __call__(self, name: str, images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return self.infer(name, {self._open(name)[0].signature.inputs[0].name: images})

    def infer(self, name: str, given: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        model, runner, _ = self._open(name)
        return runner.run(given)[model.signature.outputs[0].name]

    def _open(self, name: str) -> tuple[Model, ModelRunner, dict[str, Any]]:
        if name not in self._opened:
            draft = read(MODELS, name, 1)
            runner = open_model(draft.provisional(), 1, None)
            model = complete(draft, runner.signature, 0)
            self._opened[name] = model, runner, config_json(model, draft.config)
        return self._opened[name]


@fetched
def test_a_drawn_sign_is_read() -> None:
    local = Local()
    output = local.config("recogniser")["output"][0]["name"]
    labels = local.config("recogniser")["parameters"][f"labels:{output}"]["string_value"]
    alphabet = labels.split("\n")
    assert len(alphabet) == 6625
    lines = read_text(draw_sign(SIGN), local, alphabet)
    assert [line.text for line in lines] == list(SIGN)
    assert [line.turned for line in lines] == [False, False, True]
    assert all(line.confidence > 0.8 for line in lines)
    assert read_text(Image.new("RGB", (320, 320), (9, 9, 9)), local, alphabet) == []


@fetched
def test_sentences_of_one_meaning_are_near() -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(MODELS / "embedder" / "1" / "tokenizer.json"))
    local: Any = Local()
    vectors = embed(local, tokenizer, (QUESTION, *SENTENCES))
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    scores = vectors[1:] @ vectors[0]
    assert scores[0] > scores[1] > scores[2]
    alone = embed(local, tokenizer, SENTENCES[:1])  # without padding
    assert np.allclose(alone[0], vectors[1], atol=1e-5)
