"""The lines of a protobuf text's keys, which protobuf's own parser does not keep."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)|(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
    r"""|(?P<mark>[{}<>\[\]:,;])|(?P<word>[^\s{}<>\[\]:,;"'\#]+|.)""",
    re.DOTALL,
)


@dataclass(slots=True)
class _Open:
    """A message that has begun: its path, its descriptor, and how many values its fields have."""

    path: str
    descriptor: Any
    counts: dict[str, int] = field(default_factory=dict)
    key: str = ""  #: whose value comes next, or is being listed
    listed: bool = False

    @property
    def field(self) -> Any:
        """The descriptor of the field that is being given; ``None`` for none, or an unknown one."""
        return None if self.descriptor is None else self.descriptor.fields_by_name.get(self.key)

    def key_path(self) -> str:
        return f"{self.path}.{self.key}" if self.path and self.key else self.path or self.key

    def value_path(self) -> str:
        """The path of the next value, which is counted."""
        count = self.counts.get(self.key, 0)
        self.counts[self.key] = count + 1
        repeated = self.field is not None and self.field.is_repeated
        return f"{self.key_path()}[{count}]" if repeated else self.key_path()


class KeyLines:
    """The lines of a text's keys, and where its end is.

    ``lines`` maps paths such as ``input[0].dims`` to line numbers; an entry of a map is also found
    by its key, as ``parameters['slo_ms']``. ``path`` is where the text ends, and ``field`` the
    descriptor of the field whose value would come there, if any.
    """

    def __init__(self, text: str, descriptor: Any) -> None:
        self.lines: dict[str, int] = {}
        self._open = [_Open("", descriptor)]
        self._line, self._colon = 1, False
        for match in _TOKEN.finditer(text):
            token = match[0]
            if match.lastgroup == "mark":
                self._mark(token)
            elif match.lastgroup != "space":
                self._word(token, match.lastgroup == "string")
            self._line += token.count("\n")
        self.path = self._open[-1].key_path()
        self.field = self._open[-1].field

    def _mark(self, token: str) -> None:
        top = self._open[-1]
        if token in "{<":
            path, within = self._value(top), top.field
            self._open.append(_Open(path, None if within is None else within.message_type))
        elif token in "}>" and len(self._open) > 1:
            self._open.pop()
            self._end_value(self._open[-1])
        elif token in "[]":
            top.listed = token == "["
            self._end_value(top)
        self._colon = token == ":"

    def _word(self, token: str, string: bool) -> None:
        top = self._open[-1]
        if self._colon or top.listed:
            self._value(top)
            if top.key == "key" and string:
                self.lines.setdefault(f"{top.path.rpartition('[')[0]}['{token[1:-1]}']", self._line)
            self._end_value(top)
            self._colon = False
        elif not string:  # one that follows a string is part of it
            top.key = token
            self.lines.setdefault(top.key_path(), self._line)

    def _value(self, top: _Open) -> str:
        path = top.value_path()
        self.lines.setdefault(path, self._line)
        return path

    def _end_value(self, top: _Open) -> None:
        if not top.listed:
            top.key = ""
