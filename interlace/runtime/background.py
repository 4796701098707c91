"""Lower priority for processes that must not slow down serving."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

#: A tenth of the weight of a process that serves (sched(7)).
NICE: Final = 10
_GROUP: Final = Path("/proc/self/autogroup")


def yield_cores() -> None:
    """Leave the cores to processes that serve: this one gets idle time, or a tenth of a core.

    Where sessions are Linux's scheduling groups (autogroup, sched(7)), cores are divided among
    sessions first, and nice values count only within one. So the process gets a session of its own,
    and the session the same nice value.
    """
    os.nice(NICE)
    with suppress(OSError):  # it leads its session already
        os.setsid()
    with suppress(OSError):  # no such groups, or not ours to weigh
        _GROUP.write_text(str(NICE))
