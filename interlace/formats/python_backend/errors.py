"""Errors of models' code, and checks of what it says beside tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from operator import index
from typing import Any, Final

from interlace.core.errors import Reason


class TritonModelException(Exception):
    """An error that a model raises; it fails all requests of the call."""


def wrong_type(what: str, expected: str, value: object) -> TypeError:
    """The error of an argument of another type; Triton raises ``TypeError`` for it, too."""
    return TypeError(f"{what}: expected {expected}, got {type(value).__name__}")


def text(value: str | bytes, what: str) -> str:
    """A name as text. Elements of BYTES inputs are ``bytes``, which Triton takes for names, too.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    raise wrong_type(what, "a str", value)


def integer(value: int, what: str, least: int = 0) -> int:
    """An integer, perhaps of NumPy.

    Raises:
        TypeError: it is none, or below ``least``.
    """
    try:
        number = index(value)
    except TypeError:
        raise wrong_type(what, "an int", value) from None
    if number < least:
        raise TypeError(f"{what}: expected at least {least}, got {number}")
    return number


class TritonError:
    """An error of one response."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED = range(6)
    ALREADY_EXISTS, CANCELLED = 6, 7

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        """Raises ``TypeError`` if ``message`` is no text or ``code`` no code."""
        if not isinstance(code, int):
            raise wrong_type("code", "a code of TritonError", code)
        self._message = text(message, "message")
        self._code = code

    def message(self) -> str:
        """The text that the client receives."""
        return self._message

    def code(self) -> int:
        """One of the codes of this class."""
        return self._code

    @property
    def reason(self) -> Reason:
        """The server's reason for this code; one that is none of these is the caller's fault."""
        return _REASONS.get(self._code, Reason.BAD_INPUT)


_REASONS: Final = {
    TritonError.UNKNOWN: Reason.UNKNOWN,
    TritonError.ALREADY_EXISTS: Reason.ALREADY_EXISTS,
    TritonError.INTERNAL: Reason.BACKEND,
    TritonError.NOT_FOUND: Reason.NOT_FOUND,
    TritonError.UNAVAILABLE: Reason.NOT_READY,
    TritonError.UNSUPPORTED: Reason.UNSUPPORTED,
    TritonError.CANCELLED: Reason.CANCELLED,
}


def json_parameters(parameters: Mapping[str, Any] | None) -> str:
    """Parameters as JSON; empty for none.

    Raises:
        TritonModelException: no ``dict``, a name that is no text, or a value of another type than
            Triton has.
    """
    if parameters is not None and not isinstance(parameters, dict):
        raise TritonModelException(f"parameters: expected a dict, got {type(parameters).__name__}")
    for name, value in (parameters or {}).items():
        if not isinstance(name, str):
            found = type(name)
            raise TritonModelException(
                f"Expect parameters keys to have type str, found type {found}"
            )
        if not isinstance(value, bool | int | str):
            raise TritonModelException(
                f"Expect parameters values to have type bool/int/str, found type {type(value)}"
            )
    return json.dumps(parameters) if parameters else ""
