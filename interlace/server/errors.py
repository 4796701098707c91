"""Errors as callers receive them: the status of each reason; a bounded log of the server's own."""

from __future__ import annotations

import logging
import time
from enum import IntEnum
from http import HTTPStatus
from typing import Final

import msgspec

from interlace.core.errors import Reason, ServeError


class GrpcStatus(IntEnum):
    """The codes of the gRPC protocol."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


#: The status of each reason over HTTP and gRPC. Total: every member of ``Reason`` has its row.
_STATUSES: Final = (
    (Reason.UNKNOWN_MODEL, 404, GrpcStatus.NOT_FOUND),
    (Reason.BAD_INPUT, 400, GrpcStatus.INVALID_ARGUMENT),
    (Reason.UNSUPPORTED, 501, GrpcStatus.UNIMPLEMENTED),
    (Reason.OVERLOADED, 429, GrpcStatus.RESOURCE_EXHAUSTED),
    (Reason.DEADLINE, 504, GrpcStatus.DEADLINE_EXCEEDED),
    (Reason.NOT_READY, 503, GrpcStatus.UNAVAILABLE),
    (Reason.CANCELLED, 400, GrpcStatus.CANCELLED),  # 499 is C++ tritonclient's own timeout
    (Reason.UNAUTHORIZED, 401, GrpcStatus.UNAUTHENTICATED),
    (Reason.TOO_LARGE, 413, GrpcStatus.RESOURCE_EXHAUSTED),
    (Reason.QUARANTINED, 503, GrpcStatus.UNAVAILABLE),
    (Reason.BACKEND, 500, GrpcStatus.INTERNAL),
    (Reason.NOT_FOUND, 404, GrpcStatus.NOT_FOUND),
    (Reason.ALREADY_EXISTS, 400, GrpcStatus.ALREADY_EXISTS),  # 400 and not 409, as in Triton
    (Reason.UNKNOWN, 400, GrpcStatus.UNKNOWN),
    (Reason.SUPERSEDED, 409, GrpcStatus.FAILED_PRECONDITION),
)
HTTP_STATUS: Final = {reason: status for reason, status, _ in _STATUSES}
GRPC_STATUS: Final = {reason: status for reason, _, status in _STATUSES}
#: Of the status line.
PHRASES: Final = {each.value: each.phrase for each in HTTPStatus}


def error_text(body: bytes) -> str:
    """The error that the body of a response tells, as JSON or as it is."""
    try:
        return str(msgspec.json.decode(body)["error"])
    except (msgspec.DecodeError, KeyError, RecursionError, TypeError):
        return body[:200].decode("utf-8", "replace").strip()


class HttpError(Exception):
    """A request that is wrong as HTTP, before it means anything to the server.

    ``headers`` are complete lines, each with its line end.
    """

    def __init__(self, status: int, detail: str, headers: str = "") -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers


_log = logging.getLogger(__name__)

#: Tracebacks written within a minute; the others are counted only, so that no client fills a disk.
TRACEBACKS_MAX: Final = 10
_MINUTE_S: Final = 60.0


class InternalErrors:
    """Turns exceptions into refusals, and writes a bounded number of them down."""

    def __init__(self) -> None:
        self._since_s = float("-inf")
        self._written = 0
        self._left_out = 0

    def refusal(self, error: Exception, what: str) -> ServeError:
        """The refusal of a request; one that met a fault of the server is ``what`` in the log."""
        if isinstance(error, ServeError):
            return error
        now_s = time.monotonic()
        if now_s - self._since_s > _MINUTE_S:
            if self._left_out:
                _log.error("%d more requests failed, without a traceback", self._left_out)
            self._since_s, self._written, self._left_out = now_s, 0, 0
        if self._written < TRACEBACKS_MAX:
            self._written += 1
            _log.error("%s failed", what, exc_info=error)
        else:
            self._left_out += 1
        return ServeError(Reason.BACKEND, "the server could not handle the request: see its log")
