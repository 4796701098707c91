"""Sockets that listen, and why a server cannot listen where it was told to."""

from __future__ import annotations

import errno
import os
import socket


def listening_socket(what: str, host: str, port: int, backlog: int) -> socket.socket:
    """A socket that listens for ``what``; port 0 picks one.

    Raises:
        OSError: the port is busy, or the host is not ours; says which and why.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        raise cannot_listen(what, host, port, error) from error
    sock.setblocking(False)
    return sock


def cannot_listen(what: str, host: str, port: int, error: OSError) -> OSError:
    """The error as who started the server should read it; ``what`` is spoken there."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno == errno.EADDRINUSE:
        reason += ": end who has it, or choose another port"
    elif error.errno == errno.EADDRNOTAVAIL:
        reason += ": this machine has no such address"
    return OSError(error.errno, f"cannot listen for {what} on {host}:{port}: {reason}")
