"""A strict reader of ``config.pbtxt``: protobuf text checked against ModelConfig's fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from interlace.core.errors import RepositoryError
from interlace.repository.model_config import ModelConfig, nearest_name
from interlace.repository.scalars import convert, expected
from interlace.repository.schema import MODEL_CONFIG, Choice, Field, Message, Scalar
from interlace.repository.tokens import Token, tokens

_CLOSING: Final = {"{": "}", "<": ">"}
_DEPTH_LIMIT: Final = 32


def parse_pbtxt(text: str, source: str) -> ModelConfig:
    """Read the text of a ``config.pbtxt``.

    Raises:
        RepositoryError: not protobuf text, an unknown field, or a value of the wrong type; with
            file and line.
    """
    parser = _Parser(text, source)
    values = parser.message(MODEL_CONFIG, "", None, 0)
    return ModelConfig(source, values, parser.lines)


class _Parser:
    def __init__(self, text: str, source: str) -> None:
        self.lines: dict[str, int] = {}
        self._source = source
        self._tokens = tokens(text, source)
        self._next = next(self._tokens)

    def message(
        self, fields: Message | None, path: str, closing: str | None, depth: int
    ) -> dict[str, Any]:
        """Fields up to ``closing`` (``None``: the end of the file), which is taken too."""
        if depth > _DEPTH_LIMIT:
            raise self._error(self._next, path, "messages nested too deep", "a model configuration")
        values: dict[str, Any] = {}
        while not self._at_end(closing, path):
            name = self._take("word", path, "a field name")
            key = f"{path}.{name.text}" if path else name.text
            field = self._field(fields, name, path)
            self.lines.setdefault(key, name.line)
            self._field_values(field, values, name, key, depth)
            if self._next.text in (",", ";") and self._next.kind == "punctuation":
                self._advance()
        return values

    def _at_end(self, closing: str | None, path: str) -> bool:
        if closing is None:
            return self._next.kind == "end"
        if self._next.kind == "end":
            raise self._error(self._next, path, "end of file", f"'{closing}'")
        if self._is(closing):
            self._advance()
            return True
        return False

    def _field(self, fields: Message | None, name: Token, path: str) -> Field | None:
        if fields is None:
            return None
        if name.text not in fields:
            where = path or "ModelConfig"
            raise self._error(
                name,
                where,
                f"field '{name.text}'",
                f"a field of it: {nearest_name(name.text, fields)}",
            )
        return fields[name.text]

    def _field_values(
        self, field: Field | None, values: dict[str, Any], name: Token, key: str, depth: int
    ) -> None:
        def put(value: Any) -> None:
            self._put(field, values, name, key, value)

        colon = self._is(":")
        if colon:
            self._advance()
        if self._is("["):
            if field is not None and not (field.repeated or field.keyed):
                raise self._error(self._next, key, "a list", "one value")
            self._list(field, key, depth, put)
        else:
            place = self._place(field, values, name.text, key)
            put(self._value(field, place, depth, colon))

    def _list(self, field: Field | None, key: str, depth: int, put: Callable[[Any], None]) -> None:
        self._advance()
        place = 0
        while not self._is("]"):
            put(self._value(field, f"{key}[{place}]", depth, True))
            place += 1
            if self._is(","):
                self._advance()
            elif not self._is("]"):
                raise self._error(self._next, key, f"'{self._next.text}'", "',' or ']'")
        self._advance()

    def _place(self, field: Field | None, values: dict[str, Any], name: str, key: str) -> str:
        if field is None or not field.repeated:
            return key
        return f"{key}[{len(values.get(name, ()))}]"

    def _put(
        self, field: Field | None, values: dict[str, Any], name: Token, key: str, value: Any
    ) -> None:
        if field is not None and field.keyed:
            values.setdefault(name.text, {})[value["key"]] = value["value"]
        elif field is not None and field.repeated:
            values.setdefault(name.text, []).append(value)
        elif name.text in values:
            if field is not None:
                raise self._error(name, key, "given twice", "once")
            before = values[name.text]
            values[name.text] = [*(before if isinstance(before, list) else [before]), value]
        else:
            values[name.text] = value

    def _value(self, field: Field | None, key: str, depth: int, colon: bool) -> Any:
        token = self._next
        self.lines.setdefault(key, token.line)
        if self._is("{") or self._is("<"):
            if field is not None and isinstance(field.kind, Scalar | Choice) and not field.keyed:
                raise self._error(token, key, "a message", expected(field))
            self._advance()
            fields = None if field is None else _fields_of(field)
            value = self.message(fields, key, _CLOSING[token.text], depth + 1)
            return self._entry(field, value, token, key)
        message = field is not None and (field.keyed or isinstance(field.kind, Mapping))
        if message or not colon:
            wanted = "a message: { ... }" if message else "':' or a message: { ... }"
            raise self._error(token, key, f"'{token.text}'", wanted)
        return self._scalar(field, key)

    def _entry(self, field: Field | None, value: dict[str, Any], token: Token, key: str) -> Any:
        if field is None or not field.keyed:
            return value
        if "key" not in value:
            raise self._error(token, key, "an entry without key", "key and value")
        empty: Any = "" if field.kind is Scalar.STRING else {}
        return {"key": str(value["key"]), "value": value.get("value", empty)}

    def _scalar(self, field: Field | None, key: str) -> Any:
        token = self._advance()
        if token.kind == "string":
            text = token.text
            while self._next.kind == "string":  # adjacent strings are one
                text += self._advance().text
            token = token._replace(text=text)
        kind = None if field is None else field.kind
        value = convert(kind, token)
        if value is None:
            assert field is not None
            raise self._error(token, key, f"'{token.text}'", expected(field))
        return value

    def _is(self, punctuation: str) -> bool:
        return self._next.kind == "punctuation" and self._next.text == punctuation

    def _take(self, kind: str, path: str, expected: str) -> Token:
        if self._next.kind != kind:
            raise self._error(self._next, path or "ModelConfig", f"'{self._next.text}'", expected)
        return self._advance()

    def _advance(self) -> Token:
        token = self._next
        if token.kind != "end":
            self._next = next(self._tokens)
        return token

    def _error(self, token: Token, path: str, found: str, expected: str) -> RepositoryError:
        return RepositoryError(f"{self._source}:{token.line}: {path}", found, expected)


def _fields_of(field: Field) -> Message | None:
    if field.keyed:
        return {"key": Field(None), "value": Field(field.kind)}
    return field.kind if isinstance(field.kind, Mapping) else None
