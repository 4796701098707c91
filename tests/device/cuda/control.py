"""A stand-in for the control daemon of MPS: it writes down what it was told."""

from __future__ import annotations

import sys
from pathlib import Path

_CODE = """#!{python}
import os, pathlib, sys
pipe = pathlib.Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
assert pipe.is_dir() and pathlib.Path(os.environ["CUDA_MPS_LOG_DIRECTORY"]).is_dir()
said = sys.argv[1] if len(sys.argv) > 1 else sys.stdin.read().strip()
with open({log!r}, "a") as log:
    print(said, os.environ["CUDA_VISIBLE_DEVICES"], file=log)
sys.exit({code})
"""


def control_program(folder: Path, code: int = 0) -> tuple[str, Path]:
    """The program, which ends with ``code``, and the file it writes to."""
    program, log = folder / "nvidia-cuda-mps-control", folder / "told"
    program.write_text(_CODE.format(python=sys.executable, log=str(log), code=code))
    program.chmod(0o755)
    return str(program), log
