"""All that only a GPU can tell, in one command: `scripts/gpu-check`.

Parts run one after the other, each in a process of its own with a time limit. Every row is written
to OUT/rows.jsonl as it comes, what came of a part to OUT/PART.json, and all of it to one bundle,
also when the run is told to end. `--resume` leaves out parts that have finished. `--dry-run` walks
the same code without a GPU, on the fake driver of the tests: its figures mean nothing, but what it
cannot walk cannot run.
"""

import argparse
import contextlib
import os
import shutil
import signal
import site
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from types import FrameType
from typing import Any, Final

from bench.gpu.child import ENVIRONMENT, Children, Errand
from bench.gpu.findings import NAME, Findings, Found, bundle, unpack
from bench.gpu.models import NAMES
from bench.gpu.parts import END_S, MOST_S, PARTS, Part, chosen, granted_s, with_seconds
from bench.gpu.rows import Row, Verdict, failed, seen, skipped
from bench.gpu.show import Screen
from interlace.device.cuda.mps import PROGRAM

_PERSISTENCE: Final = "persistence mode"


@contextmanager
def nvml_open(dry: bool, pynvml: Any = None) -> Iterator[Row]:
    """NVML open in this process for a while, and a row that says what that is good for.

    Without persistence mode a GPU is switched off when its last user goes, and takes one to three
    seconds for the next: each part would pay them. ``pynvml`` is a module that does the same.
    """
    if dry:
        yield skipped(_PERSISTENCE, "needs a GPU")
        return
    try:
        nvml = pynvml or _pynvml()
        nvml.nvmlInit()
    except Exception as error:
        yield skipped(_PERSISTENCE, f"NVML cannot be kept open: {error}")
        return
    try:
        yield _persistence(nvml)
    finally:
        nvml.nvmlShutdown()


def _pynvml() -> Any:
    import pynvml

    return pynvml


def _persistence(nvml: Any) -> Row:
    try:
        on = bool(nvml.nvmlDeviceGetPersistenceMode(nvml.nvmlDeviceGetHandleByIndex(0)))
    except nvml.NVMLError as error:
        return skipped(_PERSISTENCE, str(error))
    words = "on" if on else "off: this run holds NVML open, so that the GPU stays initialised"
    return seen(_PERSISTENCE, words, on=on)


#: Where daemons that this program starts have their pipes, below a part's temporary folder.
_PIPES: Final = "interlace-mps-*/pipe"
_PID_FILE: Final = "nvidia-cuda-mps-control.pid"
_QUIT_S: Final = 10.0


@contextmanager
def temporary() -> Iterator[Path]:
    """A part's own temporary folder. Daemons that it starts have their pipes below it."""
    folder = Path(mkdtemp(prefix="interlace-gpu-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def end_daemons(folder: Path, program: str = PROGRAM) -> Iterator[Row]:
    """Quit each daemon of MPS whose pipes lie in the folder; a row for each."""
    for pipe in sorted(folder.glob(_PIPES)):
        what = "a daemon of MPS was left behind"
        try:
            yield seen(what, f"ended: {_ended(pipe, program)}")
        except OSError as error:
            yield failed(what, error)


def _ended(pipe: Path, program: str) -> str:
    """How it ended: told to, or killed, if it does not answer."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        said = subprocess.run(
            [program],
            env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipe)},
            input="quit -t 5\n", text=True, timeout=_QUIT_S, check=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        if said.returncode == 0:
            return "it was told to quit"
    try:
        os.kill(int((pipe / _PID_FILE).read_text()), signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return "it did not answer, and no longer runs"
    return "it did not answer, and was killed"


BACKEND: Final = "bench.gpu.devices:open_backend"
FAKE: Final = "tests.device.cuda.fake.backend:at_once"
#: A dry run is for any machine, however slow or busy.
_DRY_PATIENCE: Final = 4
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class ToldToEnd(BaseException):
    """A signal: what has been found is to be kept, and nothing more is to be begun."""


@dataclass(frozen=True, slots=True)
class Course:
    """What is to be run, and until when on ``time.monotonic``'s clock; where the bundle goes.

    What finished before is read instead if ``resume``. ``models``: as ``Bench`` has them.
    """

    parts: Sequence[Part]
    bundle: Path
    end_s: float = float("inf")
    resume: bool = False
    models: tuple[str, ...] = ()


def run(course: Course, findings: Findings, screen: Screen) -> None:
    """The parts in order, as many as there is time for; what was found is kept however it ends.

    What a part leaves of its seconds is there for those that follow.
    """
    children = Children()
    try:
        with _signals(), nvml_open(findings.dry) as machine:
            _tell(machine, findings, screen)
            _parts(course, children, findings, screen)
    except ToldToEnd as told:
        findings.cut = f"told to end by {told}"
        screen.cut(findings.cut)
    finally:
        children.close()
        findings.close()
        findings.missing = bundle(findings.out, course.bundle)


def _parts(course: Course, children: Children, findings: Findings, screen: Screen) -> None:
    before = {part.name: findings.kept(part) for part in course.parts if course.resume}
    _tell(seen("until torch was imported", f"{children.warm():.1f} s"), findings, screen)
    for place, part in enumerate(course.parts):
        found = before.get(part.name)
        if found is not None:
            screen.part(part, found.seconds)
            for row in found.rows:
                screen.row(row)
            screen.ended(found)
            findings.resume(found)
            continue
        later = [one for one in course.parts[place + 1 :] if before.get(one.name) is None]
        seconds = granted_s(part, later, course.end_s - END_S - time.monotonic())
        if not seconds:
            screen.left_out(part)
            findings.leave_out(part)
            continue
        screen.part(part, seconds)
        screen.ended(_run_part(course, children, part, seconds, findings, screen))
        findings.sum_up()
        bundle(findings.out, course.bundle)  # a run that is killed has lost no part before


def _tell(row: Row, findings: Findings, screen: Screen) -> None:
    findings.row(row)
    screen.row(row)


def _run_part(
    course: Course,
    children: Children,
    part: Part,
    seconds: float,
    findings: Findings,
    screen: Screen,
) -> Found:
    """Run one part for so many seconds at most, show its rows as they come, and keep them."""
    out, dry = findings.out, findings.dry
    (out / ".home").mkdir(exist_ok=True)
    with temporary() as folder:
        environment = {
            **ENVIRONMENT,
            "TMPDIR": str(folder),
            # What is compiled is kept for later parts, where the own home is read-only or is lost.
            "HOME": str((out / ".home").resolve()),
            "PYTHONUSERBASE": site.getuserbase(),
            **part.environment,
        }
        errand = Errand(
            part.entry,
            FAKE if dry else BACKEND,
            dry,
            out,
            out / f"{part.name}.log",
            seconds * (_DRY_PATIENCE if dry else 1),
            environment,
            course.models,
        )
        findings.begin(part, environment)
        broken = False
        try:
            with closing(children.rows(errand)) as rows:
                for row in rows:
                    broken |= row.verdict is Verdict.FAILED and row.what.startswith("the part")
                    _tell(row, findings, screen)
        finally:
            for row in end_daemons(folder):
                _tell(row, findings, screen)
    return findings.end(finished=not broken)


@contextmanager
def _signals() -> Iterator[None]:
    """The first signal to end becomes ``ToldToEnd`` wherever this process stands."""

    def told(number: int, frame: FrameType | None) -> None:
        for one in before:  # what is found is being kept: nobody ends that
            signal.signal(one, signal.SIG_IGN)
        before.clear()
        raise ToldToEnd(signal.Signals(number).name)

    before = {one: signal.getsignal(one) for one in _SIGNALS}
    before = {one: handler for one, handler in before.items() if handler is not signal.SIG_IGN}
    for one in before:
        signal.signal(one, told)
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    about = "\n".join(f"  {one.name:<13}{one.seconds:4.0f} s  {one.tells}" for one in PARTS)
    parser = argparse.ArgumentParser(
        prog="scripts/gpu-check",
        description=__doc__,
        epilog=f"parts in their order, and what each can count on:\n{about}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="parts or groups")
    parser.add_argument(
        "--seconds", nargs="+", default=[], metavar="PART=N", help="what a part can count on"
    )
    parser.add_argument(
        "--models", nargs="+", default=[], choices=NAMES, metavar="MODEL",
        help=f"what profiles and goodput are asked of: {', '.join(NAMES)}",
    )  # fmt: skip
    parser.add_argument(
        "--resume", nargs="?", const=True, default=False, metavar="BUNDLE",
        help="leave out what has finished, in OUT or in a bundle of another run",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="walk every part without a GPU")
    parser.add_argument(
        "--patience", type=float, default=1.0, metavar="N", help="give every part N times as long"
    )
    parser.add_argument(
        "--most-s", type=float, metavar="S",
        help=f"end within so many seconds ({MOST_S:g} times N if not said; no limit when dry)",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("build/gpu-check"), metavar="FOLDER")
    parser.add_argument(
        "--bundle", type=Path, metavar="FILE",
        help=f"where all findings go as one file (OUT/{NAME} if not said)",
    )  # fmt: skip
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 1 if something did not run to its end, 2 if what is asked cannot be."""
    began_s = time.monotonic()
    asked = _arguments(arguments)
    try:
        named = with_seconds(chosen(asked.only), asked.seconds)
        if isinstance(asked.resume, str):
            unpack(Path(asked.resume), asked.out)
    except (KeyError, OSError, tarfile.TarError) as error:
        print(error.args[0] if isinstance(error, KeyError) else error, file=sys.stderr)
        return 2
    parts = [replace(part, seconds=asked.patience * part.seconds) for part in named]
    most_s = float("inf") if asked.dry_run else asked.patience * MOST_S
    if asked.most_s is not None:
        most_s = asked.most_s
    screen, findings = Screen(asked.dry_run), Findings(asked.out, asked.dry_run)
    file = asked.bundle or asked.out / NAME
    models = tuple(asked.models)
    run(Course(parts, file, began_s + most_s, bool(asked.resume), models), findings, screen)
    screen.summary(findings, file)
    broken = any(row.broken for one in findings.results for row in one.rows)
    return 1 if broken or findings.cut else 0


if __name__ == "__main__":
    sys.exit(main())
