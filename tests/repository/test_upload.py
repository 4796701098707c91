"""Files sent by clients: written where they are read from, never elsewhere, never code."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.errors import RepositoryError
from interlace.repository import read, scan, write_upload


def test_sent_files_are_a_repository_of_one(tmp_path: Path) -> None:
    root = write_upload(tmp_path, "m", {"1/model.onnx": b"graph", "1/model.onnx.data": b"weights"})
    assert root.parent == tmp_path
    assert scan(root)[0].versions == (1,)
    assert read(root, "m", 1, '{"max_batch_size": 2}').asked_batch == 2
    assert (root / "m" / "1" / "model.onnx").read_bytes() == b"graph"


@pytest.mark.parametrize(
    "path",
    [
        "model.onnx", "/1/model.onnx", "1/../model.onnx", "../1/model.onnx", "1//model.onnx",
        "1/./model.onnx", "01/model.onnx", "x/model.onnx", "1/.model.onnx", "1\\model.onnx",
        "1/a\0.onnx", "", "1/", "1/" + "x" * 600 + ".onnx", "1/model.py", "1/model.pt",
        "1/model.pt2", "1/pytorch_model.bin", "1/lib.so", "1/model",
    ],
)  # fmt: skip
def test_other_paths_are_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(RepositoryError, match="files of 'm'"):
        write_upload(tmp_path, "m", {"1/model.onnx": b"", path: b""})
    assert list(tmp_path.iterdir()) == []


@given(st.text(max_size=20), st.text(max_size=20))
@settings(max_examples=200, deadline=None)
def test_nothing_is_written_outside(
    tmp_path_factory: pytest.TempPathFactory, name: str, path: str
) -> None:
    parent = tmp_path_factory.getbasetemp() / "stage"
    parent.mkdir(exist_ok=True)
    try:
        root = write_upload(parent, name, {f"1/{path}.onnx": b"x"})
    except RepositoryError:
        return
    (written,) = (file for file in root.rglob("*") if file.is_file())
    assert written.resolve().is_relative_to(root.resolve() / name / "1")


def test_no_files_and_bad_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match="0 files"):
        write_upload(tmp_path, "m", {})
    with pytest.raises(RepositoryError, match="model name"):
        write_upload(tmp_path, "../m", {"1/model.onnx": b""})
