"""Where servers listen: one rule for every port."""

import socket
from collections.abc import Sequence

import pytest

from interlace.server.listening import listening_sockets


def _answers(port: int) -> list[str]:
    found = []
    for address in ("127.0.0.1", "::1"):
        try:
            socket.create_connection((address, port), timeout=5).close()
        except OSError:
            continue
        found.append(address)
    return found


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


BOTH = ["127.0.0.1", "::1"] if _has_ipv6() else ["127.0.0.1"]


@pytest.mark.parametrize(
    ("host", "wanted"),
    [
        ("::", BOTH),
        ("[::]", BOTH),
        ("localhost", BOTH),
        ("127.0.0.1", ["127.0.0.1"]),
        ("0.0.0.0", ["127.0.0.1"]),
        ("[::1]", BOTH[1:]),
    ],
)
def test_both_families_answer_where_both_are_meant(host: str, wanted: Sequence[str]) -> None:
    if ":" in host and not _has_ipv6():
        pytest.skip("this machine has no IPv6")
    sockets = listening_sockets("HTTP", host, 0, 8)
    assert _answers(sockets[0].getsockname()[1]) == wanted
    for sock in sockets:
        sock.close()


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("127.0.0.1", 65536, "127.0.0.1:65536: ports are 0 to 65535"),
        ("127.0.0.1", -1, "ports are 0 to 65535"),
        ("no-such-host.invalid", 0, "cannot listen for HTTP on no-such-host.invalid:0: "),
        ("192.0.2.1", 0, "this machine has no such address"),
    ],
)
def test_why_it_cannot_listen(host: str, port: int, message: str) -> None:
    with pytest.raises(OSError, match=message):
        listening_sockets("HTTP", host, port, 8)


@pytest.mark.parametrize("what", ["HTTP", "gRPC"])
def test_a_busy_port_is_a_plain_error(what: str) -> None:
    (taken,) = listening_sockets(what, "127.0.0.1", 0, 1)
    port = taken.getsockname()[1]
    where = f"cannot listen for {what} on 127.0.0.1:{port}: Address already in use: end"
    with pytest.raises(OSError, match=where):
        listening_sockets(what, "127.0.0.1", port, 8)
    taken.close()
