"""Under what conditions figures were taken: when, by which command, of which program, on what."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any


def conditions() -> dict[str, Any]:
    """Date, command, commit, machine and the libraries that figures depend on."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", *sys.orig_argv[1:]]),
        "commit": _commit(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "gpu": _gpu(),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "numpy": _version("numpy"),
    }


def _commit() -> str:
    """The checkout's commit, with a + if files were changed since; empty where git cannot tell."""
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=10"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
        )
    except OSError:  # git is not installed
        return ""
    return done.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _gpu() -> str:
    """Name and driver of the first GPU; empty without one."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no such library, or no driver: the same answer
        return ""
    try:
        name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
        return f"{name}, driver {pynvml.nvmlSystemGetDriverVersion()}"
    except pynvml.NVMLError:
        return ""
    finally:
        pynvml.nvmlShutdown()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
