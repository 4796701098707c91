"""Processes that step back for those that serve."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

#: A tenth of the weight of a process that serves (sched(7)).
NICE: Final = 10
_GROUP: Final = Path("/proc/self/autogroup")


def step_back() -> None:
    """Let this process take a core only as far as those that serve leave it, or a tenth of it.

    Where sessions are Linux's scheduling groups (autogroup, sched(7)), cores are divided among
    sessions first, and nice values count only within one. So the process gets a session of its own,
    and the session the same nice value.
    """
    os.nice(NICE)
    with suppress(OSError):  # it leads its session already
        os.setsid()
    with suppress(OSError):  # no such groups, or not ours to weigh
        _GROUP.write_text(str(NICE))
