"""Sockets that listen, and why a server cannot listen where it was told to."""

from __future__ import annotations

import errno
import os
import socket


def listening_sockets(what: str, host: str, port: int, backlog: int) -> list[socket.socket]:
    """Sockets that listen for ``what``, one for each address of the host; port 0 picks one.

    ``::`` is every address of both families where the machine has both, ``localhost`` both
    loopbacks. An IPv6 address may stand in brackets.

    Raises:
        OSError: the port is busy or none, or the host is not ours; says which and why.
    """
    if not 0 <= port <= 65535:
        raise OSError(f"cannot listen for {what} on {host}:{port}: ports are 0 to 65535")
    found: list[socket.socket] = []
    try:
        for family, address in _addresses(host.removeprefix("[").removesuffix("]"), port):
            taken = found[0].getsockname()[1] if found else port
            found.append(_listening(family, (address, taken), backlog))
    except OSError as error:
        for sock in found:
            sock.close()
        raise cannot_listen(what, host, port, error) from error
    return found


def _addresses(host: str, port: int) -> list[tuple[int, str]]:
    """Families and addresses of a host, IPv4 first; without IPv6 where this machine has none."""
    kinds = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    found = sorted({(int(family), str(address[0])) for family, _, _, _, address in kinds})
    if host == "localhost":
        found = [(int(socket.AF_INET), "127.0.0.1")]
        if _has_address("::1"):
            found.append((int(socket.AF_INET6), "::1"))
    return found


def _has_address(address: str) -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sock:
            sock.bind((address, 0))
    except OSError:
        return False
    return True


def _listening(family: int, address: tuple[str, int], backlog: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            alone = address[0] != "::"
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, alone)
        sock.bind(address)
        sock.listen(backlog)
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def cannot_listen(what: str, host: str, port: int, error: OSError) -> OSError:
    """The error as who started the server should read it; ``what`` is spoken there."""
    named = isinstance(error, socket.gaierror) or not error.errno
    reason = (error.strerror or str(error)) if named else os.strerror(error.errno or 0)
    if error.errno == errno.EADDRINUSE:
        reason += ": end who has it, or choose another port"
    elif error.errno == errno.EADDRNOTAVAIL:
        reason += ": this machine has no such address"
    return OSError(error.errno, f"cannot listen for {what} on {host}:{port}: {reason}")
