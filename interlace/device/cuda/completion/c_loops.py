"""Code that runs without the GIL, compiled by the machine's C compiler and kept on disk."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

from interlace.device.cuda.disk_cache import FOLDER, cached_bytes

_COMPILER: Final = "cc"
_FLAGS: Final = ("-O2", "-shared", "-fPIC")
_COMPILE_S: Final = 30.0

#: Watches flags until it is told to stop; ``sources/loops.c`` describes the arguments.
PollLoop = Callable[..., None]


def poll_loop() -> PollLoop:
    """The loop that polls flags; ``ctypes`` calls it without the GIL.

    Raises:
        OSError: as ``c_library``.
    """
    source = (files(__package__) / "sources" / "loops.c").read_text(encoding="utf-8")
    poll = c_library("loops", source).watch_flags
    u64 = ctypes.c_uint64
    poll.argtypes = [*[u64] * 5, ctypes.c_int, ctypes.c_int, u64, ctypes.c_uint32]
    poll.restype = None
    return poll


@cache
def c_library(stem: str, source: str) -> ctypes.CDLL:
    """C compiled and loaded once; the compiled library is kept on disk for the next process.

    Raises:
        OSError: there is no compiler, it refuses the source, or the library cannot be loaded.
    """
    made_of = "\0".join((source, platform.machine(), platform.libc_ver()[0], *_FLAGS))
    folder = Path(FOLDER).expanduser()
    return _loaded(cached_bytes(folder, stem, made_of, ".so", lambda: _compiled(source)))


def _compiled(source: str) -> bytes:
    compiler = shutil.which(_COMPILER)
    if compiler is None:
        raise OSError(f"there is no C compiler ({_COMPILER}) on the path")
    with tempfile.TemporaryDirectory(prefix="interlace-") as folder:
        text, out = Path(folder, "loops.c"), Path(folder, "loops.so")
        text.write_text(source, encoding="utf-8")
        command = [compiler, *_FLAGS, "-o", str(out), str(text)]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_COMPILE_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise OSError(f"{compiler} did not end within {_COMPILE_S:g} s") from error
        if done.returncode != 0:
            said = (done.stderr.strip().splitlines() or ["without a word"])[0]
            raise OSError(f"{compiler} failed with code {done.returncode}: {said[:200]}")
        return out.read_bytes()


@cache
def _loaded(library: bytes) -> ctypes.CDLL:
    # From memory: the folder that it is kept in may forbid to run what lies there. The descriptor
    # of each library stays open: the loader knows libraries by their path, and another one that was
    # given the same number would be taken for this.
    fd = os.memfd_create("interlace-loops", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(fd), "wb") as out:
            out.write(library)
        return ctypes.CDLL(f"/proc/self/fd/{fd}")
    except OSError:
        os.close(fd)
        raise
