"""Single values of protobuf text: which token stands for what."""

from __future__ import annotations

from typing import Any, Final

from interlace.repository.schema import Choice, Field, Scalar
from interlace.repository.tokens import Token

_TRUE: Final = ("true", "True", "t", "1")
_FALSE: Final = ("false", "False", "f", "0")


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


def _integer(text: str) -> int | None:
    digits = "".join(text.split())
    try:
        octal = digits.lstrip("+-")
        base = 8 if len(octal) > 1 and octal[0] == "0" and octal.isdigit() else 0
        return int(digits, base)
    except ValueError:
        return None


def _number(text: str) -> float | None:
    try:
        return float("".join(text.split()).rstrip("fF") if text[-1:] in "fF" else text)
    except ValueError:
        return None
