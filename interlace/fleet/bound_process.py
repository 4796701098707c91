"""``python -m interlace.fleet.bound_process PID ARGS``: Python with ARGS, ended with process PID.

It is sent SIGTERM when the thread of PID that started it has gone, however that ended.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("whoever started this has gone")
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
