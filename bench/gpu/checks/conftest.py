"""Options of gpu-check, and the run that its tests share."""

import contextlib
import os
import signal
import tempfile
import time
from argparse import ArgumentTypeError
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Final

import pytest

from bench.gpu import parts
from bench.gpu.checks.course import Course, Options, unpack
from bench.gpu.models import NAMES
from bench.gpu.rows import Verdict

_BEGAN_S: Final = time.monotonic()
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_COURSE: Final = pytest.StashKey[Course]()


def _seconds(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    if name not in {part.name for part in parts.PARTS} or not number.isdigit():
        raise ArgumentTypeError(f"{text}: expected PART=SECONDS, such as goodput=200")
    return name, float(number)


def pytest_addoption(parser: pytest.Parser) -> None:
    names = [part.name for part in parts.PARTS]
    add = parser.getgroup("gpu-check").addoption
    add("--only", nargs="+", default=[], choices=names, help="parts to run")
    add("--seconds", nargs="+", default=[], type=_seconds, metavar="PART=N", help="time of a part")
    add("--models", nargs="+", default=[], choices=NAMES, help="models of profiles and goodput")
    add(
        "--resume", nargs="?", const="", metavar="BUNDLE",
        help="skip parts that have finished, in OUT or in a bundle of another run",
    )  # fmt: skip
    add("--dry-run", action="store_true", help="use the simulated driver; keep no figures")
    add("--patience", type=float, default=1.0, metavar="N", help="multiply the time of each part")
    add(
        "--most-s", type=float, metavar="S", help=f"end within S seconds ({parts.MOST_S:g} times N)"
    )
    add("--out", type=Path, default=Path("build/gpu-check"), metavar="FOLDER")
    add("--bundle", type=Path, metavar="FILE", help="all results in one file (OUT/bundle.tar.gz)")


def _chosen(config: pytest.Config) -> list[parts.Part]:
    """Return the parts of the run with their time."""
    only, seconds = config.getoption("only"), dict(config.getoption("seconds"))
    patience = config.getoption("patience")
    return [
        replace(part, seconds=patience * seconds.get(part.name, part.seconds))
        for part in parts.PARTS
        if (part.name in only if only else part.usual)
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("part", _chosen(metafunc.config), ids=lambda part: part.name)


def _interrupt(number: int, frame: FrameType | None) -> None:
    for one in _SIGNALS:  # results are being written
        signal.signal(one, signal.SIG_IGN)
    raise KeyboardInterrupt(signal.Signals(number).name)


@contextlib.contextmanager
def _nvml(dry: bool) -> Iterator[None]:
    """Keep NVML open: without persistence mode a GPU is switched off between parts."""
    try:
        import pynvml

        if not dry:
            pynvml.nvmlInit()
    except Exception as error:
        print(f"NVML cannot be kept open: {error}")
    yield


@pytest.fixture(scope="session")
def course(request: pytest.FixtureRequest) -> Iterator[Course]:
    """The run; its results are bundled however it ends."""
    for one in _SIGNALS:
        signal.signal(one, _interrupt)
    option = request.config.getoption
    dry, out, resume = option("dry_run"), option("out"), option("resume")
    if resume:
        unpack(Path(resume), out)
    most_s = option("most_s") or (float("inf") if dry else option("patience") * parts.MOST_S)
    with _nvml(dry), tempfile.TemporaryDirectory(prefix="interlace-gpu-") as folder:
        options = Options(out, option("bundle"), dry, tuple(option("models")), _BEGAN_S + most_s)
        made = Course(options, _chosen(request.config), resume is not None)
        # Daemons have their folders here. This process's own are elsewhere: it is the last to end.
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        request.config.stash[_COURSE] = made
        try:
            yield made
        finally:
            made.close()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Repeat what is not as expected: of a long output often only the end is seen."""
    course = config.stash.get(_COURSE, None)
    if course is None:
        return
    laws = [row for row in course.rows if row.binding and not row.broken]
    terminalreporter.section(f"{len(laws)} laws hold")
    for row in course.rows:
        if row.verdict is Verdict.OTHER and not row.broken:
            terminalreporter.line(str(row)[:400])
    if config.getoption("dry_run"):
        terminalreporter.line("A dry run: no GPU was used, and no figure says anything of one.")
    terminalreporter.line(f"results: {course.out}, all in one: {course.file}")
