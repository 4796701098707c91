"""Single values of protobuf text: which token stands for what."""

from __future__ import annotations

from typing import Any, Final

from interlace.repository.schema import Choice, Field, Scalar
from interlace.repository.tokens import Token

_TRUE: Final = ("true", "True", "t", "1")
_FALSE: Final = ("false", "False", "f", "0")
_MOST: Final = 1 << 63
_SHOWN_CHARS: Final = 200


def expected(field: Field) -> str:
    """What a field takes, in words."""
    match field.kind:
        case Scalar():
            return field.kind.value
        case Choice(names=names):
            return f"one of {', '.join(names)}"
    return "a message"


def convert(kind: Any, token: Token) -> Any:
    """The value of a token as ``kind``; ``None`` if it is none."""
    match kind, token.kind:
        case (Scalar.STRING, "string"):
            return token.text
        case (Scalar.BOOL, "word" | "number"):
            return True if token.text in _TRUE else False if token.text in _FALSE else None
        case (Scalar.INT, "number"):
            return _integer(token.text)
        case (Scalar.FLOAT, "number" | "word"):
            return _number(token.text)
        case (Choice(names=names), "word"):
            return token.text if token.text in names else None
        case (Choice(names=names), "number"):
            place = _integer(token.text)
            return names[place] if place is not None and 0 <= place < len(names) else None
        case (None, "number"):
            whole = _integer(token.text)
            return _number(token.text) if whole is None else whole
        case (None, "word" | "string"):
            words = {"true": True, "false": False}
            return words.get(token.text, token.text) if token.kind == "word" else token.text
    return None


def whole(value: int) -> int | None:
    """The same integer if it fits 63 bits and a sign, as it must where it is sent on."""
    return value if -_MOST <= value < _MOST else None


def shown(value: Any) -> str:
    """A wrong value in an error's words, however large it is."""
    try:
        text = repr(value)
    except (ValueError, RecursionError) as error:  # thousands of digits, or of lists
        return f"{type(value).__name__} ({error})"
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def _integer(text: str) -> int | None:
    digits = "".join(text.split())
    try:
        octal = digits.lstrip("+-")
        base = 8 if len(octal) > 1 and octal[0] == "0" and octal.isdigit() else 0
        return whole(int(digits, base))
    except ValueError:
        return None


def _number(text: str) -> float | None:
    try:
        return float("".join(text.split()).rstrip("fF") if text[-1:] in "fF" else text)
    except ValueError:
        return None
