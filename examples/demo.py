"""The example models at work: a drawn sign is read, sentences are ranked by meaning.

Needs a running server (scripts/serve) and the packages of ``pip install .[demo]``.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from tokenizers import Tokenizer
from tritonclient import http
from tritonclient.utils import InferenceServerException

ROOT = Path(__file__).resolve().parent.parent
SIGN = ("MIND THE STEP", "PLATFORM 9", "EXIT 42")
QUESTION = "Where does the train to the coast leave?"
SENTENCES = (
    "The seaside express departs from platform nine.",
    "A railway station has many platforms.",
    "Bake the bread for forty minutes.",
)
EMBEDDER, SIGNS = "embedder", "signs"
LINE = ("text", "confidence", "turned")  #: outputs of the app, one row for each line of text
DATATYPES = {"int64": "INT64", "uint8": "UINT8"}
TOKENS_MAX = 256

Array = np.ndarray[Any, Any]


class Server:
    """A server by HTTP: tensors in and out by name."""

    def __init__(self, url: str) -> None:
        self._client = http.InferenceServerClient(url)
        self.calls: list[tuple[str, float]] = []  #: model and ms of every call

    def __call__(self, model: str, arrays: dict[str, Array]) -> dict[str, Array]:
        """All outputs for these inputs."""
        inputs = []
        for name, array in arrays.items():
            inputs.append(http.InferInput(name, list(array.shape), DATATYPES[str(array.dtype)]))
            inputs[-1].set_data_from_numpy(np.ascontiguousarray(array))
        start = time.perf_counter()
        result = self._client.infer(model, inputs)
        self.calls.append((model, (time.perf_counter() - start) * 1000))
        names = [output["name"] for output in result.get_response()["outputs"]]
        return {name: result.as_numpy(name) for name in names}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server")
    parser.add_argument("--models", type=Path, default=ROOT / "models", help="for the tokeniser")
    parser.add_argument("--save", type=Path, help="keep the drawn sign in this PNG file")
    options = parser.parse_args()
    try:
        server = Server(options.url)
        show_sign(server, options.save)
        show_sentences(server, options.models / EMBEDDER / "1" / "tokenizer.json")
    except InferenceServerException as error:
        print(f"demo: the server says: {error.message()}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"demo: no server at {options.url} ({error}); run scripts/serve", file=sys.stderr)
        return 1
    return 0


def show_sign(server: Server, save: Path | None) -> None:
    """Draw a sign, have the app read it in one call, print what it says."""
    picture = draw_sign(SIGN)
    if save is not None:
        picture.save(save)
    print(f"A sign of {picture.width} x {picture.height} pixels, one line of it upside down:")
    found = server(SIGNS, {"picture": np.asarray(picture)})
    for text, sure, turned in zip(*(found[name] for name in LINE), strict=True):
        print(f"  {text.decode():<16} {sure:.0%} sure{', turned round' if turned else ''}")
    print_calls(server)


def show_sentences(server: Server, tokenizer_file: Path) -> None:
    """Embed a question and sentences, print the sentences by how near they are."""
    texts = (QUESTION, *SENTENCES)
    vectors = embed(server, Tokenizer.from_file(str(tokenizer_file)), texts)
    scores = vectors[1:] @ vectors[0]  # of unit length: the product is the cosine
    print(f"\nNearest to: {QUESTION}")
    for place in np.argsort(-scores):
        print(f"  {scores[place]:+.2f}  {SENTENCES[place]}")
    print_calls(server)


def draw_sign(lines: Sequence[str]) -> Image.Image:
    """White on blue, one line under the other, the last one upside down."""
    picture = Image.new("RGB", (640, 320), (20, 50, 120))
    for place, text in enumerate(lines):
        strip = Image.new("RGB", (600, 80), (20, 50, 120))
        font = ImageFont.load_default(size=48)
        ImageDraw.Draw(strip).text((10, 4), text, font=font, fill=(250, 250, 250))
        if place == len(lines) - 1:
            strip = strip.transpose(Image.Transpose.ROTATE_180)
        picture.paste(strip, (20, 20 + place * 100))
    return picture


def embed(server: Server, tokenizer: Tokenizer, texts: Sequence[str]) -> Array:
    """Unit vectors (rows, 384) of the texts, all in one request."""
    tokenizer.enable_truncation(TOKENS_MAX)
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(list(texts))
    outputs = server(
        EMBEDDER,
        {
            "input_ids": np.array([text.ids for text in encoded], np.int64),
            "attention_mask": np.array([text.attention_mask for text in encoded], np.int64),
            "token_type_ids": np.array([text.type_ids for text in encoded], np.int64),
        },
    )
    (vectors,) = outputs.values()
    return vectors


def print_calls(server: Server) -> None:
    """Which models were asked since last time, and how long each took."""
    times = ", ".join(f"{model} {ms:.0f} ms" for model, ms in server.calls)
    print(f"  ({times})")
    server.calls.clear()


if __name__ == "__main__":
    sys.exit(main())
