"""Processes that step back are weighed less than those that serve, within and between sessions."""

import os
import subprocess
import sys
from pathlib import Path

from interlace.runtime.scheduling import NICE

_ASK = (
    "import os; from pathlib import Path; from interlace.runtime.scheduling import yield_cores; "
    "yield_cores(); yield_cores(); print(os.getpriority(os.PRIO_PROCESS, 0), os.getsid(0)); "
    "group = Path('/proc/self/autogroup'); print(group.read_text() if group.exists() else '')"
)


def test_a_process_steps_back_in_a_session_of_its_own() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    done = subprocess.run(
        [sys.executable, "-c", _ASK], capture_output=True, text=True, check=True, timeout=60
    )
    weights, group = done.stdout.split("\n", 1)
    nice, session = map(int, weights.split())
    assert nice == min(19, before + 2 * NICE)
    assert session != os.getsid(0)
    enabled = Path("/proc/sys/kernel/sched_autogroup_enabled")
    if group.strip() and enabled.read_text().strip() == "1":
        assert group.strip().endswith(f"nice {NICE}")
