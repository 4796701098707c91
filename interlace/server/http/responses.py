"""HTTP statuses of every refusal, and responses as bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import msgspec

from interlace.core.errors import Reason, ServeError

#: The one table from reasons to statuses; total.
STATUS: Final[Mapping[Reason, int]] = {
    Reason.UNKNOWN_MODEL: 404,
    Reason.BAD_INPUT: 400,
    Reason.UNSUPPORTED: 501,
    Reason.OVERLOADED: 429,
    Reason.DEADLINE: 504,
    Reason.NOT_READY: 503,
    Reason.CANCELLED: 499,
    Reason.UNAUTHORIZED: 401,
    Reason.TOO_LARGE: 413,
    Reason.QUARANTINED: 503,
    Reason.BACKEND: 500,
    Reason.SUPERSEDED: 409,
}

PHRASES: Final[Mapping[int, str]] = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    413: "Content Too Large",
    414: "URI Too Long",
    415: "Unsupported Media Type",
    417: "Expectation Failed",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    499: "Client Closed Request",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
    504: "Gateway Timeout",
    505: "HTTP Version Not Supported",
}

JSON: Final = "application/json"
OCTETS: Final = "application/octet-stream"
METRICS_MEDIA: Final = "text/plain; version=0.0.4; charset=utf-8"
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class HttpError(Exception):
    """A request that is wrong as HTTP, before it means anything to the server.

    ``headers`` are complete lines, each with its line end.
    """

    def __init__(self, status: int, detail: str, headers: str = "") -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers


def head_of(status: int, media: str, length: int, headers: str = "") -> bytes:
    """Status line and headers of a response, up to the empty line."""
    return (
        f"HTTP/1.1 {status} {PHRASES[status]}\r\nContent-Type: {media}\r\n{headers}"
        f"Content-Length: {length}\r\n\r\n"
    ).encode("latin-1")


def response(status: int, body: bytes, media: str = JSON, headers: str = "") -> bytes:
    """A whole response."""
    return head_of(status, media, len(body), headers) + body


def error_response(error: ServeError | HttpError) -> bytes:
    """A refusal: the text, why, and where it is known when to come back."""
    if isinstance(error, HttpError):
        body = msgspec.json.encode({"error": error.detail})
        return response(error.status, body, headers=error.headers)
    content: dict[str, object] = {"error": error.detail, "reason": error.reason.value}
    headers = ""
    if error.retry_after_ms is not None:
        content["retry_after_ms"] = round(error.retry_after_ms, 3)
        headers = f"Retry-After: {max(1, math.ceil(error.retry_after_ms / 1000.0))}\r\n"
    if error.late_ms is not None:
        content["late_ms"] = round(error.late_ms, 3)
    if error.reason is Reason.UNAUTHORIZED:
        headers += "WWW-Authenticate: Bearer\r\n"
    return response(STATUS[error.reason], msgspec.json.encode(content), headers=headers)


def with_connection(start: bytes, keep_alive: bool) -> bytes:
    """The same start of a response with a ``Connection`` header."""
    line_end = start.index(b"\r\n") + 2
    value = b"keep-alive" if keep_alive else b"close"
    return start[:line_end] + b"Connection: " + value + b"\r\n" + start[line_end:]
