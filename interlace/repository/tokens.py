"""Tokens of the protobuf text format, with the lines they stand on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from interlace.core.errors import RepositoryError


class Token(NamedTuple):
    """``kind`` is word, number, string, punctuation or end; strings are unquoted already."""

    kind: str
    text: str
    line: int


_PATTERN: Final = re.compile(
    r"""(?P<space>[ \t\r\n\f\v]+|\#[^\n]*)
      | (?P<number>[-+]?\s*(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[fF]?))(?!\w)
      | (?P<word>-?[A-Za-z_][\w]*)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<punctuation>[{}<>\[\]:,;])""",
    re.VERBOSE,
)
_ESCAPE: Final = re.compile(r"\\([0-7]{1,3}|x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{4}|.)", re.DOTALL)
_SIMPLE: Final = {"n": 10, "t": 9, "r": 13, "a": 7, "b": 8, "f": 12, "v": 11}


def tokens(text: str, source: str) -> Iterator[Token]:
    """Every token, then one of kind ``end``.

    Raises:
        RepositoryError: a character that starts no token, such as an unclosed quote.
    """
    place, line = 0, 1
    while place < len(text):
        match = _PATTERN.match(text, place)
        if match is None:
            rest = text[place:].splitlines()[0][:40]
            raise RepositoryError(f"{source}:{line}", f"{rest!r}", "protobuf text")
        kind, found = str(match.lastgroup), match.group()
        if kind != "space":
            yield Token(kind, _unquote(found) if kind == "string" else found, line)
        line += found.count("\n")
        place = match.end()
    yield Token("end", "end of file", line)


def _unquote(quoted: str) -> str:
    # Escapes give bytes, so that a character may be written as several octal ones.
    content, out, end = quoted[1:-1], bytearray(), 0
    for match in _ESCAPE.finditer(content):
        out += content[end : match.start()].encode() + _escaped(match.group(1))
        end = match.end()
    return (out + content[end:].encode()).decode(errors="replace")


def _escaped(code: str) -> bytes:
    if code[0] in "01234567":
        return bytes([int(code, 8) & 0xFF])
    if code[0] == "x" and len(code) > 1:
        return bytes([int(code[1:], 16)])
    if code[0] == "u" and len(code) > 1:
        return chr(int(code[1:], 16)).encode(errors="replace")
    return bytes([_SIMPLE[code]]) if code in _SIMPLE else code.encode()
