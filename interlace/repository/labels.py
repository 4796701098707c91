"""Names of classes, one a line, that a model's outputs point to with ``label_filename``."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Final

from interlace.core.errors import RepositoryError
from interlace.repository.files import read_text
from interlace.repository.model_config import ModelConfig

_LIMIT_BYTES: Final = 4 << 20


def read_labels(folder: Path, config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """Labels by output name; a file lies in the model folder, next to ``config.pbtxt``.

    A trailing newline ends the last label; spaces are part of one.

    Raises:
        RepositoryError: the file is missing, too large, not UTF-8, or outside the folder.
    """
    labels = {}
    for place, output in enumerate(config.values.get("output", [])):
        name = output.get("label_filename", "")
        if name:
            labels[output["name"]] = _read(folder, name, config, f"output[{place}].label_filename")
    return labels


def _read(folder: Path, name: str, config: ModelConfig, key: str) -> tuple[str, ...]:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise config.error(key, f"'{name}'", "a file in the model's own folder")
    file = folder / path
    try:
        text = read_text(file, _LIMIT_BYTES)
    except (OSError, RepositoryError) as error:
        raise config.error(key, f"{file} ({error})", "a file with one label a line") from error
    return tuple(text.removesuffix("\n").split("\n"))
