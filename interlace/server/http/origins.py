"""Requests that a web page makes a browser send: refused where no API key protects the server."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from interlace.server.http.responses import HttpError


@dataclass(frozen=True, slots=True)
class Origins:
    """Hosts that requests may name besides IP addresses; ``None`` for any.

    Any page can send a POST to a server on the reader's own machine (cross-site request
    forgery), and one whose name was made to point here reads the answers too (DNS rebinding). No
    name of a page is an IP address, and pages cannot forge ``Origin`` and ``Sec-Fetch-Site``.
    """

    hosts: frozenset[str] | None = None

    def refusal(self, method: str, fields: Mapping[bytes, bytes]) -> HttpError | None:
        """Why a request with these headers is refused, if so."""
        host = fields.get(b"host", b"").decode("latin-1").strip().lower()
        if self.hosts is not None and host and not self._known(host):
            text = f"Host '{host[:128]}' is not one of this server's names: see --allow-host"
            return HttpError(403, text)
        if method != "POST":
            return None
        origin = fields.get(b"origin", b"").decode("latin-1").strip().lower()
        site = fields.get(b"sec-fetch-site", b"").strip().lower()
        if site == b"cross-site" or (origin and _authority(origin) != _bare(host)):
            text = "requests from web pages of other origins are refused where no API key is asked"
            return HttpError(403, text)
        return None

    def _known(self, host: str) -> bool:
        name = _name(host)
        return name in (self.hosts or ()) or _is_address(name)


def loopback(host: str) -> bool:
    """Whether that is an address, or the name, of this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _name(host: str) -> str:
    """A host without its port, and without the brackets of an IPv6 address."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _authority(origin: str) -> str:
    """Host and port of an origin; empty for an opaque one, such as ``null``."""
    return _bare(origin.partition("://")[2])


def _bare(host: str) -> str:
    """Host and port, the port left out where it is the scheme's own."""
    for port in (":80", ":443"):
        host = host.removesuffix(port)
    return host
