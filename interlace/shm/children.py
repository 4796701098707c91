"""Child processes: fresh interpreters that find the packages of this one, and end with it."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name
from typing import Final, NamedTuple, Protocol

#: A tenth of the weight of a process that serves (sched(7)).
NICE: Final = 10
_PR_SET_PDEATHSIG: Final = 1
_CODE: Final = (
    "import json, sys; entry, owner, arguments, sys.path[:] = json.loads(sys.argv[1]); "
    "from interlace.shm.children import main; main(entry, owner, arguments)"
)


def start(
    entry: str,
    *arguments: object,
    environment: Mapping[str, str] | None = None,
    descriptors: Sequence[int] = (),
    pipes: bool = False,
    yields: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a process that calls ``entry``, a ``module:function``, with what JSON can hold.

    ``environment`` is set beside this process's own. A process that is given ``descriptors`` has a
    session of its own, and ends once they are closed. Any other is sent SIGTERM when the thread
    that called this has ended, however it did. With ``pipes``, its standard streams come from here.
    One that ``yields`` leaves its cores to processes that serve, its imports included.

    Raises:
        OSError: no process or memory is left.
    """
    owner = 0 if descriptors else os.getpid()
    settings = [f"{key}={value}" for key, value in (environment or {}).items()]
    argument = json.dumps([entry, owner, arguments, sys.path])
    pipe = subprocess.PIPE if pipes else None
    process = subprocess.Popen(
        ["env", *settings, sys.executable, "-P", "-c", _CODE, argument],
        stdin=pipe or subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        pass_fds=descriptors,
        start_new_session=yields or bool(descriptors),
    )
    if yields:
        yield_cores(process.pid)
    return process


def yield_cores(pid: int) -> None:
    """Leave the cores to processes that serve: ``pid`` gets idle time, or a tenth of a core.

    It leads a session of its own. Where sessions are Linux's scheduling groups (autogroup,
    sched(7)), cores are divided among sessions first, and nice values count only within one: so the
    session gets the same nice value.
    """
    with suppress(OSError):  # it has ended, or is not ours
        os.setpriority(os.PRIO_PROCESS, pid, max(NICE, os.getpriority(os.PRIO_PROCESS, pid)))
    with suppress(OSError):  # no such groups, or not ours to weigh
        Path(f"/proc/{pid}/autogroup").write_text(str(NICE))


def main(entry: str, owner: int, arguments: Sequence[object]) -> None:
    """In the child: bind it to its ``owner``, if that has an id, and call ``entry``."""
    if owner:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != owner:
            sys.exit("whoever started this has gone")
    resolve_name(entry)(*arguments)


def become(*words: str) -> None:
    """In the child: run this command line of Python instead, as bound as it is."""
    os.execv(sys.executable, [sys.executable, *words])


class Ended(NamedTuple):
    """How a child ended: its exit status, all that it wrote, and its last line of errors."""

    status: int
    written: bytes
    last_words: str


def finish(process: subprocess.Popen[bytes], limit_s: float, sent: bytes = b"") -> Ended:
    """Send a child with pipes its input, and wait until it has ended. It blocks.

    Raises:
        subprocess.TimeoutExpired: it had not ended within ``limit_s``, and is killed.
    """
    with process:
        try:
            written, errors = process.communicate(sent, limit_s)
        except BaseException:
            process.kill()
            raise
    lines = errors.decode(errors="replace").strip().splitlines()
    return Ended(process.returncode, written, lines[-1] if lines else "")


class RunningProcess(Protocol):
    """A process that runs, as ``subprocess`` has it."""

    @property
    def pid(self) -> int: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...


def end(process: RunningProcess, patience_s: float = 0.0) -> None:
    """Wait for a child for a while, and kill it then."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(patience_s)
        return
    process.kill()
    process.wait()
