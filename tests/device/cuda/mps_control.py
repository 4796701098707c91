"""A stand-in for the control daemon of MPS: it writes down what it was told."""

import sys
from pathlib import Path

_CODE = """#!{python}
import os, pathlib, sys, time
pipe = pathlib.Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
assert pipe.is_dir() and pathlib.Path(os.environ["CUDA_MPS_LOG_DIRECTORY"]).is_dir()
said = sys.argv[1] if len(sys.argv) > 1 else sys.stdin.read().strip()
with open({log!r}, "a") as log:
    print(said, os.environ.get("CUDA_VISIBLE_DEVICES", "-"), file=log)
if said == "-d" and {stays_s}:
    child = os.fork()
    if child:
        pathlib.Path({daemon!r}).write_text(str(child))
        sys.exit({code})
    time.sleep({stays_s})
sys.exit({code})
"""


def control_program(folder: Path, code: int = 0, stays_s: float = 0.0) -> tuple[str, Path]:
    """The program, which ends with ``code``, and the file it writes to.

    It leaves a process behind for ``stays_s``, as the real one does, with its number in ``daemon``.
    """
    program, log = folder / "nvidia-cuda-mps-control", folder / "told"
    told = {"log": str(log), "code": code, "stays_s": stays_s, "daemon": str(folder / "daemon")}
    program.write_text(_CODE.format(python=sys.executable, **told))
    program.chmod(0o755)
    return str(program), log
