"""Where the loops without the GIL come from, and what is said when they cannot be had."""

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from interlace.device.cuda.completion.flag_poller import FlagPoller, c_library, poll_loop
from tests.device.cuda.fake import FakeDriver


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Nothing tried and nothing kept so far."""
    monkeypatch.setenv("HOME", str(tmp_path))
    c_library.cache_clear()
    yield
    c_library.cache_clear()


def test_the_c_compiler_is_used_once_and_its_work_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    poll_loop()
    (library,) = (tmp_path / ".cache/interlace/kernels").iterdir()
    assert library.suffix == ".so"
    c_library.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")
    poll_loop()


def test_a_folder_that_cannot_be_written_is_no_obstacle(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    poll_loop()


def test_a_compiler_that_fails_is_told_with_its_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho no headers >&2\nexit 3\n")
    compiler.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(OSError, match="failed with code 3: no headers"):
        poll_loop()


def test_without_a_compiler_the_process_does_not_start_and_nothing_is_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    driver = FakeDriver()
    with pytest.raises(OSError, match=r"no C compiler .* install gcc"):
        FlagPoller(driver, 2)
    driver.close()  # complains of what is left over


def test_two_libraries_are_two() -> None:
    one = c_library("one", "int one(void) { return 1; }")
    two = c_library("two", "int two(void) { return 2; }")
    assert (one.one(), two.two()) == (1, 2)
