"""Which key a call needs, by what it does: the one rule for HTTP and gRPC."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from interlace.core.errors import Reason, ServeError


class Access(IntEnum):
    """What a call does."""

    PROBE = 0  #: asks whether the server is there
    USE = 1  #: infers, or reads what there is to know
    CHANGE = 2  #: changes what is served, or what others use
    ORDER = 3  #: is one of a fleet's own processes: an order to a node, files for it


@dataclass(frozen=True, slots=True)
class ApiKeys:
    """The operator's keys; an empty one is not required. Of several lines each is a key.

    ``api`` lets callers use the server; ``admin`` lets them change it, too. Without an ``admin``
    key, every caller who may use the server may change it. ``node`` is what the processes of a
    fleet show each other; each of the two stands for the other where there is one alone. Each may
    be ``sha256:`` and the digest of a key.
    """

    api: str = ""
    admin: str = ""
    node: str = ""

    @property
    def order(self) -> str:
        """What is shown, and asked, with orders to nodes."""
        return shown_key(self.node or self.admin or self.api)

    def refusal(self, access: Access, given: bytes) -> ServeError | None:
        """Why a caller with that key may not do this, if so."""
        if access is Access.PROBE:
            return None
        needed, which = self.api, "an API key"
        if access is Access.ORDER and self.node:
            needed, which = self.node, "its node key for this"
        elif access >= Access.CHANGE and (self.admin or self.node):
            needed, which = self.admin or self.node, "its admin key for this"
        if not needed or _same(given, needed):
            return None
        if self.admin and access is Access.USE and _same(given, self.admin):
            return None
        return ServeError(
            Reason.UNAUTHORIZED,
            f"this server asks for {which}: send 'Authorization: Bearer KEY' or 'X-API-Key: KEY'",
        )


#: Before the SHA-256 of a key, in hexadecimal, where whoever checks it is not to have the key.
DIGEST: Final = "sha256:"


def _same(given: bytes, key: str) -> bool:
    return any(_is(given, one) for line in key.splitlines() if (one := line.strip()))


def _is(given: bytes, key: str) -> bool:
    if key.startswith(DIGEST):
        return hmac.compare_digest(hashlib.sha256(given).hexdigest(), key[len(DIGEST) :].lower())
    return hmac.compare_digest(given, key.encode())


def shown_key(keys: str) -> str:
    """The one of several that is sent: the first."""
    return keys.partition("\n")[0].strip()


def given_key(x_api_key: bytes, authorization: bytes) -> bytes:
    """The key in a caller's headers: ``X-API-Key: KEY``, or else ``Authorization: Bearer KEY``."""
    if x_api_key:
        return x_api_key
    scheme, _, key = authorization.partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""
