"""The head of an HTTP/1 request: parsed strictly, understood once, remembered by its bytes."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import httptools

from interlace.core.errors import Reason, ServeError
from interlace.server.api_keys import Access, ApiKeys, given_key
from interlace.server.errors import HttpError
from interlace.server.http.routes import Route, RouteTable
from interlace.server.limits import GenerationalCache, HttpLimits, RouteKind
from interlace.server.spans import TraceFields, trace_fields


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


CHUNKED: Final = -1
ABSENT: Final = -1

#: The most of a path with its query; names and versions are far shorter.
URL_BYTES: Final = 8 << 10
#: Heads remembered, and the largest one worth remembering.
HEADS_KEPT: Final = 1024
KEPT_BYTES: Final = 2048

#: Headers that decide something here and must therefore not be given twice.
_SINGLE: Final = frozenset(
    b"host content-length transfer-encoding inference-header-content-length content-encoding "
    b"content-type expect authorization x-api-key origin sec-fetch-site".split()
)

_NOWHERE: Final = Route("")


@dataclass(frozen=True, slots=True)
class RequestHead:
    """What the server needs of one head.

    ``refusal`` says why the request is answered without looking at its body. ``plain`` is true
    for HTTP/1.1 with keep-alive, whose responses need no ``Connection`` header. ``length`` is that
    of the body, or ``CHUNKED``; ``json_length`` is the value of Inference-Header-Content-Length,
    or ``ABSENT``. ``placed`` says that the body is received straight into the arena. ``accept`` is
    a coding that the client takes for the reply, if any. ``elapsed_ms`` is how long the request has
    been on its way through a router; ``trace`` names the caller's span; ``raw`` are the head's own
    bytes.
    """

    method: str
    route: Route
    names: tuple[str, ...]
    refusal: HttpError | ServeError | None
    keep_alive: bool
    plain: bool
    length: int
    json_length: int
    placed: bool
    encoding: str
    accept: str
    accept_asked: bool  #: the client named this one coding and no other
    expects: bool
    elapsed_ms: float
    trace: TraceFields
    raw: bytes


class RequestHeadReader:
    """Reads heads for one table of routes, and says who may not ask."""

    def __init__(
        self,
        routes: RouteTable,
        limits: HttpLimits,
        keys: ApiKeys | None = None,
        origins: Origins | None = None,
    ) -> None:
        self._routes = routes
        self._limits = limits
        self._keys = keys or ApiKeys()
        self._origins = origins or Origins()
        self._known: GenerationalCache[bytes, RequestHead] = GenerationalCache(HEADS_KEPT)

    def read(self, head: bytes) -> RequestHead:
        """The meaning of a head, given with its closing empty line.

        Raises:
            HttpError: it is malformed, ambiguous, or asks for what is not there.
        """
        found = self._known.get(head)
        if found is None:
            found = self._understand(head, *_parse(head))
            if len(head) <= KEPT_BYTES and not found.trace:  # another one in each request
                self._known.put(head, found)
        return found

    def _understand(
        self, raw: bytes, method: str, url: bytes, minor: int, fields: dict[bytes, bytes]
    ) -> RequestHead:
        route, names, refusal = self._find(method, url, fields)
        tokens = {t.strip() for t in fields.get(b"connection", b"").lower().split(b",")}
        keep_alive = b"close" not in tokens and (minor == 1 or b"keep-alive" in tokens)
        accept, asked = _accepted(fields.get(b"accept-encoding", b""))
        length = _length(minor, fields)
        given = _json_length(length, fields)
        json_length = given if route.kind is RouteKind.INFER else ABSENT
        encoding = _encoding(fields)
        return RequestHead(
            method=method,
            route=route,
            names=names,
            refusal=refusal or self._too_large(route, length, json_length, encoding),
            keep_alive=keep_alive,
            plain=keep_alive and minor == 1,
            length=length,
            json_length=json_length,
            placed=length >= 0
            and ((json_length >= 0 and not encoding) or self._is_large(route, length)),
            encoding=encoding,
            accept=accept,
            accept_asked=asked,
            expects=_expects(minor, fields),
            elapsed_ms=_elapsed_ms(fields),
            trace=trace_fields(fields),
            raw=raw,
        )

    def _is_large(self, route: Route, length: int) -> bool:
        """Whether a body is decoded in another process, which finds it in the arena."""
        inference = route.kind in (RouteKind.INFER, RouteKind.GENERATE)
        return inference and length > self._limits.here_bytes

    def _too_large(
        self, route: Route, length: int, json_length: int, encoding: str
    ) -> ServeError | None:
        if route is _NOWHERE:
            return None
        if json_length > self._limits.json_bytes:
            what, given, limit = "JSON part", json_length, self._limits.json_bytes
        else:
            limit = self._limits.of_body(route.kind, json_length >= 0 or bool(encoding))
            what, given = "request body", length
        if given <= limit:
            return None
        text = f"the {what} of {given} bytes exceeds the limit of {limit} bytes"
        if limit == self._limits.json_bytes:
            text += "; send large tensors as binary data"
        return ServeError(Reason.TOO_LARGE, text)

    def _find(
        self, method: str, url: bytes, fields: dict[bytes, bytes]
    ) -> tuple[Route, tuple[str, ...], HttpError | ServeError | None]:
        path = url.partition(b"?")[0].decode("ascii", "replace")
        if not path.startswith("/"):  # absolute form: scheme://authority/path
            path = "/" + path.partition("://")[2].partition("/")[2]
        match = self._routes.match(path)
        refusal = self._forbidden(method, fields, Access.USE if match is None else match[0].access)
        if refusal is not None:
            return _NOWHERE, (), refusal
        if match is None:
            return _NOWHERE, (), HttpError(404, f"no such path: {path[:256]}")
        if method not in match[0].methods:
            allow = ", ".join(match[0].methods)
            return _NOWHERE, (), HttpError(405, "Method Not Allowed", f"Allow: {allow}\r\n")
        return (*match, None)

    def _forbidden(
        self, method: str, fields: dict[bytes, bytes], access: Access
    ) -> HttpError | ServeError | None:
        given = given_key(fields.get(b"x-api-key", b""), fields.get(b"authorization", b""))
        refusal = self._keys.refusal(access, given)
        if refusal is not None or self._keys.api:
            return refusal
        return self._origins.refusal(method, fields)


def head_end(data: bytearray, start: int, end: int, limit_bytes: int) -> int:
    """Where the head that begins at ``start`` ends; below 0 while it is not all there.

    Raises:
        HttpError: it is too long, or its lines do not end as they must.
    """
    found = data.find(b"\r\n\r\n", start, end)
    if 0 <= found <= start + limit_bytes:
        return found + 4
    if end - start > limit_bytes:
        raise HttpError(431, f"the request head exceeds {limit_bytes} bytes")
    if data.find(b"\n\n", start, end) >= 0:
        raise HttpError(400, "malformed request head: lines must end in CR LF")
    return -1


class _Fields:
    """What the parser calls back with."""

    def __init__(self) -> None:
        self.url = b""
        self.fields: dict[bytes, bytes] = {}
        self.complete = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in self.fields:
            if name in _SINGLE:
                raise HttpError(400, f"header '{name.decode('latin-1')}' is given twice")
            value = self.fields[name] + b", " + value
        self.fields[name] = value

    def on_headers_complete(self) -> None:
        self.complete = True


def _parse(head: bytes) -> tuple[str, bytes, int, dict[bytes, bytes]]:
    """Method, URL, minor version and lower-case headers."""
    found = _Fields()
    parser = httptools.HttpRequestParser(found)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        pass  # an offer to leave HTTP/1.1, which the server does not take up
    except httptools.HttpParserCallbackError as error:
        if isinstance(error.__context__, HttpError):
            raise error.__context__ from None
        raise
    except httptools.HttpParserError as error:
        raise HttpError(400, f"malformed request head: {error}") from error
    if len(found.url) > URL_BYTES:
        raise HttpError(414, f"path and query exceed {URL_BYTES} bytes")
    version = parser.get_http_version()
    if version not in ("1.0", "1.1") or b" HTTP/1." not in head.partition(b"\r\n")[0]:
        raise HttpError(505, f"HTTP version {version} is not supported; use HTTP/1.1")
    if not found.complete:
        raise HttpError(400, "malformed request head")
    minor = int(version[2])
    if minor and b"host" not in found.fields:
        raise HttpError(400, "HTTP/1.1 requires a Host header")
    return parser.get_method().decode("ascii"), found.url, minor, found.fields


def _length(minor: int, fields: dict[bytes, bytes]) -> int:
    coding = fields.get(b"transfer-encoding")
    if coding is None:
        return int(fields.get(b"content-length", b"0"))
    if minor == 0:
        raise HttpError(400, "Transfer-Encoding means nothing in HTTP/1.0")
    if b"content-length" in fields:
        raise HttpError(400, "Content-Length and Transfer-Encoding exclude each other")
    if coding.strip().lower() != b"chunked":
        raise HttpError(501, "the only Transfer-Encoding supported is 'chunked'")
    return CHUNKED


def _json_length(length: int, fields: dict[bytes, bytes]) -> int:
    text = fields.get(b"inference-header-content-length")
    if text is None:
        return ABSENT
    if not text.isdigit() or len(text) > 18:
        raise HttpError(
            400, f"Inference-Header-Content-Length must be a byte count, got {_shown(text)}"
        )
    json_length = int(text)
    if b"content-encoding" not in fields and CHUNKED < length < json_length:
        raise HttpError(
            400, f"Inference-Header-Content-Length {json_length} exceeds Content-Length {length}"
        )
    return json_length


def _encoding(fields: dict[bytes, bytes]) -> str:
    coding = fields.get(b"content-encoding", b"").strip().lower()
    if coding in (b"", b"identity"):
        return ""
    if coding in (b"gzip", b"deflate"):
        return coding.decode("ascii")
    raise HttpError(415, f"Content-Encoding {_shown(coding)} is not supported; use gzip or deflate")


def _expects(minor: int, fields: dict[bytes, bytes]) -> bool:
    expect = fields.get(b"expect")
    if expect is None or minor == 0:
        return False
    if expect.strip().lower() != b"100-continue":
        raise HttpError(417, f"Expect {_shown(expect)} cannot be met")
    return True


def _elapsed_ms(fields: dict[bytes, bytes]) -> float:
    text = fields.get(b"interlace-elapsed-ms", b"0")
    if len(text) > 18 or not text.replace(b".", b"", 1).isdigit():
        raise HttpError(400, f"Interlace-Elapsed-Ms must be milliseconds, got {_shown(text)}")
    return float(text)


def _accepted(accept: bytes) -> tuple[str, bool]:
    """A coding of the reply that the client takes, and whether it asked for just that one."""
    names: list[str] = []
    for part in accept.lower().split(b","):
        name, _, weight = part.partition(b";")
        if name.strip() and weight.replace(b" ", b"") not in (b"q=0", b"q=0.0", b"q=0.00"):
            names.append(name.strip().decode("latin-1"))
    chosen = next((name for name in names if name in ("gzip", "deflate")), "")
    return chosen, names == [chosen]


def _shown(value: bytes) -> str:
    return repr(value[:64].decode("latin-1"))
