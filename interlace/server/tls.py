"""TLS by files of certificates: contexts that follow their files, and sockets that an epoll loop
reads and writes as those in clear text.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Final

from interlace.core.user_errors import InputError

_LOG: Final = logging.getLogger(__name__)
HTTP: Final = "http/1.1"
GRPC: Final = "h2"
#: Said once where keys come in over a host that others reach.
CLEAR_KEYS: Final = (
    "the admin or node key is asked for in clear text on %s: give --tls-cert and --tls-key, or "
    "listen on loopback behind a proxy"
)
#: How long a handshake may take.
HANDSHAKE_S: Final = 5.0
#: So many take 3 ms at most (RSA); then others of the event loop have their turn.
HANDSHAKES_A_TURN: Final = 4
_LOOK_S: Final = 1.0
_LOG_S: Final = 1.0
#: Most bytes of one TLS record, which is decrypted at once.
_RECORD_BYTES: Final = 16 << 10
_CLEAR: Final = ("HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: this process's certificate (its chain) with its key, and the authority of others.

    Listeners speak TLS if there is a ``cert``. Those whose certificate ``ca`` signed are trusted.
    """

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise InputError("--tls-cert and --tls-key: a certificate needs its key; give both")

    def listener(self, protocol: str, mutual: bool = False) -> FollowedContext | None:
        """For a listener of that ALPN protocol; ``None`` if it is to speak clear text.

        ``mutual`` asks callers for a certificate that ``ca`` signed, if there is a ``ca``.

        Raises:
            InputError: a file cannot be used, and why.
        """
        if self.cert is None:
            return None
        asks = mutual and self.ca is not None

        def make() -> ssl.SSLContext:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            if asks:
                context.verify_mode = ssl.CERT_REQUIRED
            context.set_alpn_protocols([protocol])
            return context

        return FollowedContext(make, self.cert, self.key, self.ca if asks else None)

    def client(self, protocol: str, by_name: bool = True) -> FollowedContext:
        """For calls; without a ``ca`` servers are verified by the system's authorities.

        Without ``by_name`` any certificate of the ``ca`` will do, whatever host it names.

        Raises:
            InputError: a file cannot be used, and why.
        """

        def make() -> ssl.SSLContext:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = by_name or self.ca is None
            context.set_alpn_protocols([protocol])
            if self.ca is None:
                context.load_default_certs()
            return context

        return FollowedContext(make, self.cert, self.key, self.ca)


#: Clear text alone.
NO_TLS: Final = TlsFiles()


class FollowedContext:
    """A context that is made anew when its files change, for the connections after that."""

    def __init__(
        self,
        make: Callable[[], ssl.SSLContext],
        cert: Path | None,
        key: Path | None,
        ca: Path | None,
    ) -> None:
        self._make = make
        self._cert, self._key, self._ca = cert, key, ca
        self._stamp = self._stamped()
        self._look_s = 0.0
        try:
            self._context = self._loaded()
        except (OSError, ValueError) as error:
            raise InputError(f"{self._named()}: {error}") from error

    def now(self) -> ssl.SSLContext:
        """The context for a connection that begins now. Files are looked at once a second."""
        now_s = time.monotonic()
        if now_s >= self._look_s:
            self._look_s = now_s + _LOOK_S
            stamp = self._stamped()
            if stamp != self._stamp:
                self._stamp = stamp
                self._renew()
        return self._context

    def _renew(self) -> None:
        try:
            self._context = self._loaded()  # files may not fit each other yet
        except (OSError, ValueError) as error:
            _LOG.warning("%s changed and cannot be used yet: %s", self._named(), error)
        else:
            _LOG.info("%s: taken up for new connections", self._named())

    def _loaded(self) -> ssl.SSLContext:
        context = self._make()
        context.sslsocket_class = TlsSocket
        if self._ca is not None:
            context.load_verify_locations(self._ca)
        if self._cert is not None:
            context.load_cert_chain(self._cert, self._key, password=lambda: b"")
        return context

    def _stamped(self) -> list[tuple[int, int] | None]:
        stamps: list[tuple[int, int] | None] = []
        for path in filter(None, (self._cert, self._key, self._ca)):
            try:
                found = os.stat(path)
                stamps.append((found.st_mtime_ns, found.st_ino))
            except OSError:
                stamps.append(None)
        return stamps

    def _named(self) -> str:
        return ", ".join(str(path) for path in (self._cert, self._key, self._ca) if path)


class TlsSocket(ssl.SSLSocket):
    """A socket that does not block, as one in clear text: what cannot be done yet raises
    ``BlockingIOError``. No whole record is left in it that epoll does not know of.
    """

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        try:
            return super().recv(buflen, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        """Record after record, as long as a whole one fits."""
        view, got = memoryview(buffer), 0
        while not got or len(view) - got >= _RECORD_BYTES:
            try:
                size = super().recv_into(view[got:])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if not got:
                    raise BlockingIOError from None
                break
            got += size
            if not size:
                break
        return got

    def recvmsg_into(self, buffers: Any, *more: int) -> Any:  # type: ignore[override]
        """``buffers`` are one for the first bytes, and one larger than a record for the rest.

        As with a socket in clear text, the second is used only if the first is full.
        """
        first, rest = buffers
        if len(first) >= _RECORD_BYTES:
            return (self.recv_into(first),)
        got = self.recv_into(rest[:_RECORD_BYTES])
        placed = min(got, len(first))
        first[:placed] = rest[:placed]
        rest[: got - placed] = bytes(rest[placed:got])
        return (got,)

    def send(self, data: Any, flags: int = 0) -> int:
        try:
            return super().send(data, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def sendmsg(self, buffers: Any, *more: Any) -> int:  # type: ignore[override]
        """One record, of small buffers together. After ``BlockingIOError`` those come again."""
        parts, size = [], 0
        for part in buffers:
            parts.append(part)
            size += len(part)
            if size >= _RECORD_BYTES:
                break
        return self.send(parts[0] if len(parts) == 1 else b"".join(parts))


async def connect_tls(sock: Any, context: ssl.SSLContext, name: str) -> TlsSocket:
    """TLS over a connected socket that does not block; its peer has a certificate for ``name``.

    Raises:
        OSError: the handshake failed. The socket is closed.
    """
    tls = context.wrap_socket(sock, server_hostname=name, do_handshake_on_connect=False)
    assert isinstance(tls, TlsSocket)
    loop = asyncio.get_running_loop()
    try:
        while True:
            try:
                tls.do_handshake()
                return tls
            except ssl.SSLWantReadError:
                readable = asyncio.Event()
                loop.add_reader(tls.fileno(), readable.set)
                try:
                    await readable.wait()
                finally:
                    loop.remove_reader(tls.fileno())
    except BaseException:
        tls.close()
        raise


class HandshakeLog:
    """Says which handshakes failed and why: one a second at most, since anybody can cause them."""

    def __init__(self, what: str) -> None:
        """``what`` is spoken there."""
        self._what = what
        self._said_s = -inf
        self._unsaid = 0

    def failed(self, peer: Sequence[object], error: BaseException) -> None:
        """A caller at that address did not get through. Those that just hang up are not named:
        load balancers look so whether a port is open.
        """
        if isinstance(error, ConnectionError | ssl.SSLEOFError):
            return
        now_s = time.monotonic()
        if now_s < self._said_s + _LOG_S:
            self._unsaid += 1
            return
        more, self._unsaid = f" (and {self._unsaid} before)" if self._unsaid else "", 0
        self._said_s = now_s
        address = ":".join(str(part) for part in peer[:2])
        _LOG.warning("%s: no TLS with %s: %s%s", self._what, address, _why(error), more)


def _why(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"no handshake within {HANDSHAKE_S:g} s"
    if isinstance(error, ssl.SSLError) and error.reason in _CLEAR:
        return "it sent clear text, and this port takes TLS alone: call https:// or grpcs"
    return str(error) or type(error).__name__
