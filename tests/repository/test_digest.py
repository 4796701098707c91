"""Digests: change with what matters, not with what does not, and read only what changed."""

import os
from pathlib import Path

import pytest

from interlace.core.errors import RepositoryError
from interlace.repository import digest
from interlace.repository.digest import Digests
from tests.repository.folders import add

FILES = {"model.onnx": "abc", "sub/part": "d"}


@pytest.mark.parametrize(
    "change", [{"model.onnx": "abd"}, {"sub/part": ""}, {"new": ""}, {"sub/model.onnx": "abc"}]
)
def test_what_matters_changes_it(tmp_path: Path, change: dict[str, str]) -> None:
    before = Digests().of(add(tmp_path, "1", FILES))
    assert Digests().of(add(tmp_path, "1", change)) != before


@pytest.mark.parametrize("name", ["README.md", ".gitattributes", "__pycache__/x.pyc", ".git/x"])
def test_what_does_not_matter_leaves_it(tmp_path: Path, name: str) -> None:
    before = Digests().of(add(tmp_path, "1", FILES))
    assert Digests().of(add(tmp_path, "1", {name: "text"})) == before


def test_the_place_and_links_do_not_matter(tmp_path: Path) -> None:
    original = add(tmp_path, "a", FILES)
    linked = tmp_path / "b"
    linked.mkdir()
    for name in ("model.onnx", "sub"):
        (linked / name).symlink_to(original / name)
    assert Digests().of(linked) == Digests().of(original)


def test_only_changed_files_are_read_again(tmp_path: Path) -> None:
    digests = Digests()
    folder = add(tmp_path, "1", FILES)
    before = digests.of(folder)
    file = folder / "model.onnx"
    status = file.stat()
    file.write_text("xyz")  # as long as before
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert digests.of(folder) == before
    os.utime(file)
    assert digests.of(folder) != before


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = add(tmp_path, "1", FILES)
    (folder / "gone").symlink_to(tmp_path / "nowhere")
    with pytest.raises(RepositoryError, match=r"gone: found No such file"):
        Digests().of(folder)


def test_a_file_larger_than_any_model_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "w.data").open("wb") as file:
        file.truncate(8 << 40)
    digests = Digests()
    with pytest.raises(RepositoryError, match=r"8796093022208 bytes.*a model of at most"):
        digests.of(tmp_path)
    assert digests.steps == 0


def test_many_files_are_no_way_around_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "_MODEL_BYTES", 10)
    (tmp_path / "a").write_bytes(bytes(6))
    assert len(Digests().of(tmp_path)) == 64
    (tmp_path / "b").write_bytes(bytes(6))
    with pytest.raises(RepositoryError, match="at most 10 bytes"):
        Digests().of(tmp_path)


def test_a_file_without_a_size_that_has_contents_is_refused(tmp_path: Path) -> None:
    """A link into /proc: some of what lies there has no end."""
    (tmp_path / "x").symlink_to("/proc/self/maps")
    with pytest.raises(RepositoryError, match="more than its 0 bytes"):
        Digests().of(tmp_path)


@pytest.mark.parametrize("data_bytes", [0, 1 << 20])
def test_a_file_of_holes_is_not_read(tmp_path: Path, data_bytes: int) -> None:
    with (tmp_path / "w.data").open("wb") as file:
        file.write(bytes(data_bytes))
        file.truncate(900 << 30)
    with pytest.raises(RepositoryError, match="966367641600 bytes, of which the disk holds"):
        Digests().of(tmp_path)


def test_a_file_with_some_holes_is(tmp_path: Path) -> None:
    with (tmp_path / "w.data").open("wb") as file:
        file.write(b"data")
        file.truncate(64 << 20)
    assert Digests().of(tmp_path)
