"""`interlace run`: execute one model in this process and print its outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from interlace.assembly.foreground import run_model
from interlace.cli.options import Json, pairs
from interlace.cli.screen import console, show_logs
from interlace.core.model import SampleValue
from interlace.core.rendering import json_text
from interlace.core.tensor import BYTES
from interlace.core.user_errors import InputError
from interlace.formats.runner import TypedArray

_Folder = Annotated[Path, typer.Argument(metavar="MODEL_DIR", help="The folder of one model.")]
_Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="NAME=VALUE",
        help="JSON, or @FILE: .json, .npy, .npz, or bytes. Inputs without one get sample values.",
    ),
]
_Version = Annotated[
    int | None, typer.Option(min=1, help="The version.  [default: the newest that is served]")
]


def run(
    model_dir: _Folder, input: _Inputs = None, version: _Version = None, as_json: Json = False
) -> None:
    """Execute one model in this process and print its outputs.

    The model is opened as the server opens it, of any format. Its code runs in the foreground:
    breakpoints stop it, and errors show where they are.

    \b
    Examples:
      interlace run models/embedder
      interlace run models/words --input 'WORD=[["hello"]]'
      interlace run models/detector --input image=@image.npy --json
    """
    show_logs(console(stderr=True))
    values = {name: _value(name, text) for name, text in pairs("--input", input or []).items()}
    for outputs in run_model(model_dir, version, values):
        if as_json:
            typer.echo(json_text({"outputs": [_entry(*each) for each in outputs.items()]}))
            continue
        for name, value in outputs.items():
            typer.echo(f"{name}: {value.datatype} {list(value.array.shape)}\n{_readable(value)}")


def _value(name: str, text: str) -> SampleValue:
    if not text.startswith("@"):
        return SampleValue(text)
    file = Path(text[1:])
    if file.suffix != ".json":
        return SampleValue(file=str(file))
    try:
        return SampleValue(file.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--input {name}: {file}: {error}") from None


def _entry(name: str, value: TypedArray) -> dict[str, Any]:
    shape, data = value.array.shape, _readable(value).ravel().tolist()
    return {"name": name, "datatype": value.datatype, "shape": shape, "data": data}


def _readable(value: TypedArray) -> np.ndarray[Any, Any]:
    """The values of an array: BYTES as text, BF16 (which travels as bits) as FP32."""
    if value.datatype == BYTES:
        texts = [_text(one) for one in value.array.ravel()]
        return np.array(texts, object).reshape(value.array.shape)
    if value.datatype == "BF16":
        return (value.array.astype(np.uint32) << 16).view(np.float32)
    return value.array


def _text(element: Any) -> str:
    return element.decode(errors="backslashreplace") if isinstance(element, bytes) else str(element)
