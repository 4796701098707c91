"""Why a server cannot listen where it was told to."""

from __future__ import annotations

import errno
import os


def cannot_listen(what: str, host: str, port: int, error: OSError) -> OSError:
    """The error as who started the server should read it; ``what`` is spoken there."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno == errno.EADDRINUSE:
        reason += ": end who has it, or choose another port"
    elif error.errno == errno.EADDRNOTAVAIL:
        reason += ": this machine has no such address"
    return OSError(error.errno, f"cannot listen for {what} on {host}:{port}: {reason}")
