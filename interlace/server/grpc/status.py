"""gRPC status codes, and which one each reason becomes."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from interlace.core.errors import Reason


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


#: Total: every member of ``Reason`` has its row.
STATUS: Final[dict[Reason, GrpcStatus]] = {
    Reason.UNKNOWN_MODEL: GrpcStatus.NOT_FOUND,
    Reason.BAD_INPUT: GrpcStatus.INVALID_ARGUMENT,
    Reason.UNSUPPORTED: GrpcStatus.UNIMPLEMENTED,
    Reason.OVERLOADED: GrpcStatus.RESOURCE_EXHAUSTED,
    Reason.DEADLINE: GrpcStatus.DEADLINE_EXCEEDED,
    Reason.NOT_READY: GrpcStatus.UNAVAILABLE,
    Reason.CANCELLED: GrpcStatus.CANCELLED,
    Reason.UNAUTHORIZED: GrpcStatus.UNAUTHENTICATED,
    Reason.TOO_LARGE: GrpcStatus.RESOURCE_EXHAUSTED,
    Reason.QUARANTINED: GrpcStatus.UNAVAILABLE,
    Reason.BACKEND: GrpcStatus.INTERNAL,
    Reason.SUPERSEDED: GrpcStatus.FAILED_PRECONDITION,
}
