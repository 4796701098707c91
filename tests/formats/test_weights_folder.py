"""The weights folder: whole entries or none, the first one stays."""

import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.formats.page_cache import LARGE_PAGE_BYTES, _pieces
from interlace.formats.weights_folder import discard_broken, publish, temporary_folder


@pytest.mark.parametrize("inside", ["", "file"], ids=["file", "folder"])
def test_the_first_entry_stays(tmp_path: Path, inside: str) -> None:
    target = tmp_path / "new" / "entry"
    for text in ("first", "second"):

        def write(draft: Path, text: str = text) -> None:
            if inside:
                draft.mkdir()
            (draft / inside).write_text(text)

        publish(target, write)
    assert (target / inside).read_text() == "first"
    assert [entry.name for entry in target.parent.iterdir()] == ["entry"]


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def write(draft: Path) -> None:
        draft.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        publish(tmp_path / "entry", write)
    assert list(tmp_path.iterdir()) == []


def test_what_killed_processes_left_goes_in_time(tmp_path: Path) -> None:
    old, fresh = tmp_path / ".writing-old", tmp_path / ".writing-fresh"
    for folder in (old, fresh):
        folder.mkdir()
    os.utime(old, (time.time() - 3600,) * 2)
    publish(tmp_path / "entry", lambda draft: draft.write_text("x") and None)
    assert not old.exists()
    assert fresh.exists()


def test_temporary_folders_of_killed_processes_go_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with temporary_folder("files") as used, temporary_folder("files") as other:
        dead = tmp_path / "interlace-locked-workers-x"
        dead.mkdir()
        (tmp_path / "interlace-locked-link").symlink_to(tmp_path)
        (dead / "file").write_text("of a process that was killed")
        for folder in (used, dead):
            os.utime(folder, (0, 0))
        with temporary_folder("weights") as third:
            left = {str(one) for one in tmp_path.iterdir() if not one.is_symlink()}
            assert left == {used, other, third}
    assert all(one.is_symlink() for one in tmp_path.iterdir())


def test_what_is_being_written_stays_however_long_it_takes(tmp_path: Path) -> None:
    def slow(draft: Path) -> None:
        os.utime(draft.parent, (time.time() - 3600,) * 2)
        publish(tmp_path / "other", lambda theirs: theirs.write_text("y") and None)
        draft.write_text("x")

    publish(tmp_path / "entry", slow)
    assert [(tmp_path / name).read_text() for name in ("entry", "other")] == ["x", "y"]


def test_who_finds_an_entry_broken_late_leaves_what_others_made_anew(tmp_path: Path) -> None:
    entry, looks, on = tmp_path / "entry", Event(), Event()
    entry.mkdir()
    saw: list[Path] = []

    def at_once(path: Path) -> bool:
        saw.append(path)
        return True

    def slowly(path: Path) -> bool:
        looks.set()
        assert on.wait(10.0)
        return (path / "data").exists()

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(discard_broken, entry, slowly)
        assert looks.wait(10.0)
        second = pool.submit(discard_broken, entry, at_once)
        time.sleep(0.05)
        assert not saw  # one at a time
        on.set()
        first.result()
        second.result()
    assert saw and not entry.exists()

    def write(draft: Path) -> None:
        draft.mkdir()
        (draft / "data").write_text("whole")

    publish(entry, write)
    discard_broken(entry, lambda path: (path / "data").exists())
    assert (entry / "data").read_text() == "whole"


_SIZE = 40 * LARGE_PAGE_BYTES


@given(st.integers(1, _SIZE), st.lists(st.integers(0, _SIZE), max_size=6))
def test_all_of_a_file_is_read_and_tables_last(size: int, ends: list[int]) -> None:
    sorted_ends = sorted(end % size for end in ends[: len(ends) // 2 * 2])
    tables = [
        (begin, end - begin) for begin, end in zip(sorted_ends[::2], sorted_ends[1::2], strict=True)
    ]
    pieces = list(_pieces(size, tables))
    assert all(begin % LARGE_PAGE_BYTES == 0 for begin, _ in pieces)
    covered = sorted(pieces)
    assert covered[0][0] == 0
    assert [begin + nbytes for begin, nbytes in covered] == [*(b for b, _ in covered[1:]), size]
    within = [any(b <= at and at + n <= b + k for b, k in tables) for at, n in pieces]
    assert within == sorted(within), "what is of no table comes first"


def test_a_table_that_execution_reads_by_rows_comes_last() -> None:
    mb = LARGE_PAGE_BYTES
    assert list(_pieces(5 * mb, [(100, 3 * mb)])) == [(0, mb), (3 * mb, 2 * mb), (mb, 2 * mb)]
