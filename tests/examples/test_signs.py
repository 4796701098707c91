"""Reading text: the pieces by their laws; the app and the demo on a server with the real models."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import demo
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from interlace.formats import open_model
from interlace.formats.model_file import execute_file
from interlace.formats.python_backend import api
from interlace.repository.draft import read
from interlace.repository.model import complete
from tests.serve.server import Server

MODELS = Path(__file__).resolve().parents[2] / "models"
fetched = pytest.mark.skipif(
    not all((MODELS / name / "1" / file).exists() for name, file in (
        ("detector", "model.onnx"), ("recogniser", "model.onnx"), ("embedder", "config.json"),
    )),
    reason="the example models are not here: run scripts/fetch-models",
)  # fmt: skip


@pytest.fixture(scope="module")
def code() -> Iterator[Any]:
    """The code of a stage, by the name of its model."""
    sys.modules["triton_python_backend_utils"] = api

    def load(name: str) -> ModuleType:
        return execute_file(MODELS / name / "1" / "model.py", f"code_of_{name}")

    yield load
    del sys.modules["triton_python_backend_utils"]


def flooded(mask: np.ndarray[Any, Any]) -> set[tuple[int, ...]]:
    """The same by flood fill, the obvious and slow way."""
    left = {(int(y), int(x)) for y, x in np.argwhere(mask)}
    boxes = set[tuple[int, ...]]()
    while left:
        area, edge = set(), [left.pop()]
        while edge:
            y, x = edge.pop()
            area.add((y, x))
            near = {(y + a, x + b) for a in (-1, 0, 1) for b in (-1, 0, 1)} & left
            left -= near
            edge += near
        ys, xs = [y for y, _ in area], [x for _, x in area]
        boxes.add((min(xs), min(ys), max(xs) + 1, max(ys) + 1))
    return boxes


@given(mask=arrays(np.bool_, st.tuples(st.integers(1, 9), st.integers(1, 12))))
@settings(max_examples=150, deadline=None)
def test_components_are_those_of_a_flood_fill(code: Any, mask: np.ndarray[Any, Any]) -> None:
    assert set(code("sign_lines").components(mask)) == flooded(mask)


@given(text=st.lists(st.integers(1, 3), max_size=6), data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_spelling_of_a_text_is_read_as_it(
    code: Any, text: list[int], data: st.DataObject
) -> None:
    steps = [0]
    for character in text:  # blanks between, repeats of each
        steps += [character] * data.draw(st.integers(1, 3)) + [0] * data.draw(st.integers(1, 2))
    found = code("sign_texts").decode(np.eye(4, dtype=np.float32)[steps], "_abc")
    assert found == ("".join("_abc"[c] for c in text), 1.0 if text else 0.0)


def test_lines_keep_their_proportions_and_are_turned_within_their_widths(code: Any) -> None:
    crop = Image.new("RGB", (100, 50), (255, 255, 255))
    line = code("sign_lines").padded(crop, 96, 192)
    assert (line[:, :, :96] == 1.0).all() and (line[:, :, 96:] == 0.0).all()
    line[:, 0, 0] = 0.5
    boxes = np.array([(0, 0, 100, 50)] * 2)
    directions = np.array([(0.99, 0.01), (0.01, 0.99)])
    found, turned = code("sign_upright").upright(np.stack([line, line]), boxes, directions)
    assert turned.tolist() == [False, True]
    assert (found[0] == line).all()
    assert (found[1, :, 47, 95] == 0.5).all() and (found[1, :, 0, 0] == 1.0).all()


@fetched
def test_one_call_reads_a_sign(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    members = [MODELS / name for name in ("detector", "direction", "recogniser")]
    for folder in (*members, *MODELS.glob("sign*")):
        shutil.copytree(folder, tmp_path / folder.name)
        settings_file = tmp_path / folder.name / "interlace.toml"  # for a busy machine
        settings_file.write_text(settings_file.read_text().replace("slo_ms = ", "slo_ms = 100"))
    server = Server(tmp_path, tmp_path / ".cache")
    try:
        server.wait_ready()
        client = demo.Server(f"localhost:{server.http_port}")
        demo.show_sign(client, None)
        empty = client("signs", {"picture": np.full((320, 320, 3), 9, np.uint8)})
    finally:
        server.kill()
    lines = capsys.readouterr().out.splitlines()[1:4]
    assert [line.split("  ")[1].strip() for line in lines] == list(demo.SIGN)
    assert ["turned round" in line for line in lines] == [False, False, True]
    assert {name: array.shape for name, array in empty.items()} == {
        "text": (0,), "confidence": (0,), "box": (0, 4), "turned": (0,),
    }  # fmt: skip


@fetched
def test_sentences_of_one_meaning_are_near() -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(MODELS / "embedder" / "1" / "tokenizer.json"))
    draft = read(MODELS, "embedder", 1)
    runner = open_model(draft.provisional(), 1, None)
    complete(draft, runner.signature, 0)

    def local(name: str, given: dict[str, np.ndarray[Any, Any]]) -> Any:
        return runner.run(given)

    vectors = demo.embed(local, tokenizer, (demo.QUESTION, *demo.SENTENCES))  # type: ignore[arg-type]
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    scores = vectors[1:] @ vectors[0]
    assert scores[0] > scores[1] > scores[2]
    alone = demo.embed(local, tokenizer, demo.SENTENCES[:1])  # type: ignore[arg-type]
    assert np.allclose(alone[0], vectors[1], atol=1e-5)
