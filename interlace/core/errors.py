"""Every way a caller can be refused: a closed list."""

from __future__ import annotations

from enum import Enum
from typing import Final

#: Parts of an error's text are cut there: files may hold anything.
_PART_CHARS: Final = 1_000


class Reason(Enum):
    """Why a request got no result. Each transport maps every member in one table.

    Members: when it happens, then what the caller should do (docs/errors.md).
        UNKNOWN_MODEL: no such model or version, or it failed to load. Do what the error says.
        BAD_INPUT: a tensor, type, shape, size or JSON is wrong. Send what the error expects.
        UNSUPPORTED: the server has no such feature. Do without it.
        OVERLOADED: it would be late now, or the queue is full. Retry after ``retry_after_ms``.
        DEADLINE: too slow even idle, or expired in the queue. Allow more time; if expired, retry.
        NOT_READY: the server or model starts, or the server stops. Retry, or use another server.
        CANCELLED: the client closed the connection or cancelled. Nothing.
        UNAUTHORIZED: a key is missing or wrong. Send ``Authorization: Bearer KEY``.
        TOO_LARGE: a size limit is exceeded, which the error names. Send less.
        QUARANTINED: the model ended its worker three times. Retry after ``retry_after_ms``.
        BACKEND: model or load failed, or these inputs ended its worker twice. See the error's text.
        NOT_FOUND: the model's code says so. See the error's text.
        ALREADY_EXISTS: the model's code says so. See the error's text.
        UNKNOWN: the model's code gives an error of no kind. See the error's text.
        SUPERSEDED: a node has a newer order of its fleet. Nothing: the controller stops.
    """

    UNKNOWN_MODEL = "unknown_model"
    BAD_INPUT = "bad_input"
    UNSUPPORTED = "unsupported"
    OVERLOADED = "overloaded"
    DEADLINE = "deadline"
    NOT_READY = "not_ready"
    CANCELLED = "cancelled"
    UNAUTHORIZED = "unauthorized"
    TOO_LARGE = "too_large"
    QUARANTINED = "quarantined"
    BACKEND = "backend"
    NOT_FOUND = "not_found"
    ALREADY_EXISTS = "already_exists"
    UNKNOWN = "unknown"
    SUPERSEDED = "superseded"


class ServeError(Exception):
    """A refusal or failure with its reason: what, where, why, what to do.

    ``retry_after_ms`` is when trying again may succeed: never, also elsewhere, if it is infinite.
    ``late_ms`` is by how much the deadline would have been missed. Both are ``None`` where they
    mean nothing.
    """

    def __init__(
        self,
        reason: Reason,
        detail: str,
        *,
        retry_after_ms: float | None = None,
        late_ms: float | None = None,
    ) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.retry_after_ms = retry_after_ms
        self.late_ms = late_ms

    def __eq__(self, other: object) -> bool:
        """Values compare: a replayed engine must give the same refusals."""
        return isinstance(other, ServeError) and self.values() == other.values()

    def __hash__(self) -> int:
        return hash(self.values())

    def values(self) -> tuple[object, ...]:
        """All that is equal in equal errors."""
        return (self.reason, self.detail, self.retry_after_ms, self.late_ms)


def bad_input(detail: str) -> ServeError:
    """The refusal of a request that is wrong: where, what was found, what was expected."""
    return ServeError(Reason.BAD_INPUT, detail)


class RepositoryError(Exception):
    """A model folder that cannot be served: file, key, what was found, what was expected."""

    def __init__(self, where: str, found: str, expected: str) -> None:
        where, found, expected = (text[:_PART_CHARS] for text in (where, found, expected))
        super().__init__(f"{where}: found {found}; expected {expected}")
        self.where = where
        self.found = found
        self.expected = expected
