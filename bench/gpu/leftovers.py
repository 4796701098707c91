"""What a part that was killed leaves behind: temporary files, and daemons of MPS.

A daemon lives in a session of its own and outlasts who started it. As long as it runs, it is the
daemon that others may find, and its server holds memory of the GPU.
"""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from bench.gpu.rows import Row, failed, seen
from interlace.device.cuda.mps import PROGRAM

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
