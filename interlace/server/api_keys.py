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


@dataclass(frozen=True, slots=True)
class ApiKeys:
    """The operator's keys; an empty one is not required.

    ``api`` lets callers use the server; ``admin`` lets them change it, too. Without an ``admin``
    key, every caller who may use the server may change it. Either may be ``sha256:`` and the digest
    of a key.
    """

    api: str = ""
    admin: str = ""

    def refusal(self, access: Access, given: bytes) -> ServeError | None:
        """Why a caller with that key may not do this, if so."""
        if access is Access.PROBE:
            return None
        changes = access is Access.CHANGE
        needed = self.admin if changes and self.admin else self.api
        if not needed or _same(given, needed):
            return None
        if self.admin and not changes and _same(given, self.admin):
            return None
        which = "its admin key for this" if changes and self.admin else "an API key"
        return ServeError(
            Reason.UNAUTHORIZED,
            f"this server asks for {which}: send 'Authorization: Bearer KEY' or 'X-API-Key: KEY'",
        )


#: Before the SHA-256 of a key, in hexadecimal, where whoever checks it is not to have the key.
DIGEST: Final = "sha256:"


def _same(given: bytes, key: str) -> bool:
    if key.startswith(DIGEST):
        return hmac.compare_digest(hashlib.sha256(given).hexdigest(), key[len(DIGEST) :].lower())
    return hmac.compare_digest(given, key.encode())


def given_key(x_api_key: bytes, authorization: bytes) -> bytes:
    """The key in a caller's headers: ``X-API-Key: KEY``, or else ``Authorization: Bearer KEY``."""
    if x_api_key:
        return x_api_key
    scheme, _, key = authorization.partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""
