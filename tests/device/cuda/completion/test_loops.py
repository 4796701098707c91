"""Where the loops without the GIL come from, and what is said when they cannot be had."""

from __future__ import annotations

import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from interlace.device.cuda.completion.c_loops import c_library
from interlace.device.cuda.completion.kinds import completions, default_kind
from interlace.device.cuda.completion.loops import NoCompilerError, poll_loop
from tests.device.cuda.fake import FakeDriver

NATIVE = "interlace.device.cuda.completion.c_loops"
NUMBA = "interlace.device.cuda.completion.numba_loops"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Nothing tried and nothing kept so far."""
    monkeypatch.setenv("HOME", str(tmp_path))
    poll_loop.cache_clear()
    c_library.cache_clear()
    yield
    poll_loop.cache_clear()
    c_library.cache_clear()


def broken_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    """As numba is beside a NumPy that it does not know: it is found, and fails when imported."""
    monkeypatch.delitem(sys.modules, NUMBA, raising=False)
    monkeypatch.setitem(sys.modules, "numba", None)


def test_the_c_compiler_is_used_once_and_its_work_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    notes: list[str] = []
    assert default_kind(notes.append) == "flags" and notes == []
    (library,) = (tmp_path / ".cache/interlace/kernels").iterdir()
    assert library.suffix == ".so"
    poll_loop.cache_clear()
    c_library.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")
    assert default_kind(notes.append) == "flags" and notes == []


def test_a_folder_that_cannot_be_written_is_no_obstacle(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    notes: list[str] = []
    assert default_kind(notes.append) == "flags" and notes == []


def test_without_a_compiler_numba_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    monkeypatch.setenv("PATH", "/nowhere")
    notes: list[str] = []
    assert default_kind(notes.append) == "flags"
    assert "no C compiler (cc) on the path" in notes[0]
    driver = FakeDriver()
    completions("flags", driver, 2).close()
    driver.close()


def test_a_compiler_that_fails_is_told_with_its_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken_numba(monkeypatch)
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho no headers >&2\nexit 3\n")
    compiler.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(NoCompilerError, match="failed with code 3: no headers"):
        poll_loop()


def test_with_neither_events_are_waited_for_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken_numba(monkeypatch)
    monkeypatch.setenv("PATH", "/nowhere")
    notes: list[str] = []
    assert default_kind(notes.append) == "blocking"
    assert "no C compiler" in notes[0] and "numba" in notes[0]
    driver = FakeDriver()
    with pytest.raises(NoCompilerError):
        completions("flags", driver, 2)
    driver.close()


def test_two_libraries_are_two() -> None:
    one = c_library("one", "int one(void) { return 1; }")
    two = c_library("two", "int two(void) { return 2; }")
    assert (one.one(), two.two()) == (1, 2)
