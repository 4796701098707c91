"""What a ``.pt2`` archive may hold: a program and plain tensors, no pickles, no compiled code."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Final

import torch

from interlace.core.errors import RepositoryError

_CONFIG_LIMIT_BYTES: Final = 64 << 20


def check_archive(path: Path) -> None:
    """Refuse archives that ``torch.export.load`` would unpickle or run native code from.

    The loader unpickles whatever the archive marks so, and falls back to pickle for sample inputs
    it cannot read otherwise; both are looked for here, before it sees the file.

    Raises:
        RepositoryError: which entry is refused, and what to do.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if not any("/models/" in name for name in names):
                _refuse(path, "no models/ entry", "a file written by torch.export.save")
            for name in names:
                _check_entry(path, archive, name)
    except (zipfile.BadZipFile, OSError) as error:
        raise RepositoryError(str(path), f"{error}", "a .pt2 archive") from error


def _check_entry(path: Path, archive: zipfile.ZipFile, name: str) -> None:
    inner = name.partition("/")[2]
    if inner.startswith("data/aotinductor/"):
        _refuse(path, f"compiled code ({name})", "a program saved by torch.export.save")
    if inner.startswith(("data/weights/", "data/constants/")):
        if inner.endswith(".pt") or "/custom_obj_" in inner or "/opaque_obj_" in inner:
            _refuse(path, f"a pickle ({name})", "plain tensors: save it again with this torch")
        if inner.endswith("_config.json"):
            _check_payloads(path, archive, name)
    if inner.startswith("data/sample_inputs/"):
        _check_sample(path, archive, name)


def _check_payloads(path: Path, archive: zipfile.ZipFile, name: str) -> None:
    if archive.getinfo(name).file_size > _CONFIG_LIMIT_BYTES:
        _refuse(path, f"{name} of {archive.getinfo(name).file_size} bytes", "a list of tensors")
    for tensor, payload in json.loads(archive.read(name))["config"].items():
        if payload.get("use_pickle"):
            _refuse(path, f"'{tensor}' stored as a pickle", "plain tensors")


def _check_sample(path: Path, archive: zipfile.ZipFile, name: str) -> None:
    content = archive.read(name)
    if not content:
        return
    try:
        torch.load(io.BytesIO(content), weights_only=True)
    except Exception as error:
        raise RepositoryError(
            str(path), f"sample inputs that are more than tensors ({name})", "plain tensors"
        ) from error


def _refuse(path: Path, found: str, expected: str) -> None:
    raise RepositoryError(str(path), found, expected)
