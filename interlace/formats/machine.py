"""What makes an optimised model specific to this machine, as a short key."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path


def machine_key(*versions: str) -> str:
    """16 hex digits that change with the processor's instruction set or any of ``versions``."""
    text = "\n".join((platform.machine(), _cpu_flags(), *versions))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _cpu_flags() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    for line in lines:
        if line.startswith(("flags", "Features")):
            return " ".join(sorted(line.split(":", 1)[1].split()))
    return platform.processor()
