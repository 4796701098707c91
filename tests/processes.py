"""Processes and open files as the system lists them, while both come and go.

Each list of /proc is of one moment: a thread, process or descriptor may be gone when it is read.
"""

import os
from contextlib import suppress
from pathlib import Path

import psutil


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def children() -> set[int]:
    """Child processes of this one, zombies too."""
    return {child.pid for child in psutil.Process().children()}


def memory_maps(pid: int) -> str:
    """The text of a process's memory map; empty when it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/maps").read_text()
    return ""


def open_files(pid: int) -> list[str]:
    """What the descriptors of a process point to."""
    links = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since
            links.append(os.readlink(link))
    return links
