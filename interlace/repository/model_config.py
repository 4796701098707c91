"""Triton's ModelConfig, as text or JSON: checked by protobuf's parsers, errors name the line."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf import json_format, text_format

from interlace.core.errors import RepositoryError
from interlace.core.tables import did_you_mean
from interlace.proto.messages import ModelConfigMessage

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


#: Triton's tensor types, each with the v2 datatype it stands for.
DATA_TYPES: Final[dict[str, str]] = {
    "TYPE_BOOL": "BOOL",
    "TYPE_UINT8": "UINT8",
    "TYPE_UINT16": "UINT16",
    "TYPE_UINT32": "UINT32",
    "TYPE_UINT64": "UINT64",
    "TYPE_INT8": "INT8",
    "TYPE_INT16": "INT16",
    "TYPE_INT32": "INT32",
    "TYPE_INT64": "INT64",
    "TYPE_FP16": "FP16",
    "TYPE_FP32": "FP32",
    "TYPE_FP64": "FP64",
    "TYPE_STRING": "BYTES",
    "TYPE_BF16": "BF16",
}
_ROOT: Final = ModelConfigMessage.DESCRIPTOR
#: Messages of protobuf's parsers that are reworded here.
_UNKNOWN: Final = re.compile(r'Message type "([\w.]+)" has no field named "([^"]*)"')
_TWICE: Final = re.compile(r'should not have multiple "\w+" fields')
_BOTH: Final = re.compile(r'Field "(\w+)" is specified along with field "(\w+)"')
_WANTED: Final = re.compile(r'Expected ("\W"|identifier[^,]*)')
_JSON_PATH: Final = re.compile(r'at "?ModelConfig\.?([\w.\[\]]*)')
_JSON_FIELD: Final = re.compile(r"Failed to parse (\w+) field: ")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Values as they were given: dicts, lists, strings, numbers, bools; enums are their names.

    ``lines`` maps paths such as ``input[0].dims`` to line numbers, where there are lines. ``keys``
    maps parts of paths to what the source calls them, where that is an ``interlace.toml``.
    """

    source: str = "config.pbtxt"
    values: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)

    def where(self, path: str) -> str:
        """File, line and key, as errors name them."""
        for part, key in self.keys.items():
            path = path.replace(part, key)
        line, near = self.lines.get(path), path
        while line is None and (near := re.sub(r"(\[[^\[]*\]|\.?[^.\[]+)$", "", near)):
            line = self.lines.get(near)
        return f"{self.source}: {path}" if line is None else f"{self.source}:{line}: {path}"

    def error(self, path: str, found: str, expected: str) -> RepositoryError:
        """A complaint about one key, to be raised."""
        return RepositoryError(self.where(path), found, expected)


#: What a placeholder as ``${name}`` stands for.
FILLED: Final = "a value: this file is a template, and must be filled first"


def parse_pbtxt(text: str, source: str) -> ModelConfig:
    """Read the text of a ``config.pbtxt``.

    Raises:
        RepositoryError: not protobuf text, an unknown field, or a value of the wrong type; with
            file and line.
    """
    message = ModelConfigMessage()
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        raise _text_error(error, text, source) from error
    config = ModelConfig(source, lines=KeyLines(text, _ROOT).lines)
    return ModelConfig(source, _values(message, config, config.lines), config.lines)


def parse_json(text: str) -> ModelConfig:
    """Read a configuration from JSON: field names in snake_case or lowerCamelCase.

    Raises:
        RepositoryError: not JSON, an unknown field, or a value of the wrong type.
    """
    source = "config (JSON)"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RepositoryError(source, f"no JSON ({error})", "a ModelConfig as JSON") from error
    if not isinstance(value, dict):
        raise RepositoryError(source, type(value).__name__, "a JSON object: a ModelConfig")
    message = ModelConfigMessage()
    try:
        json_format.ParseDict(value, message)
    except json_format.ParseError as error:
        raise _json_error(str(error), source) from error
    return ModelConfig(source, _values(message, ModelConfig(source), set(_json_keys(value, _ROOT))))


def _values(
    message: Any, config: ModelConfig, given: Collection[str] | None, prefix: str = ""
) -> dict[str, Any]:
    """The fields of a message whose paths are ``given``, also where they have their default;
    without paths those that have another value."""
    if given is None:
        present = [each for each, _ in message.ListFields()]
    else:
        present = [each for each in message.DESCRIPTOR.fields if prefix + each.name in given]
    values: dict[str, Any] = {}
    for each in present:
        path, value = prefix + each.name, getattr(message, each.name)
        if _is_map(each):
            inner = each.message_type.fields_by_name["value"]
            values[each.name] = {
                str(key): _value(inner, value[key], config, None, path) for key in value
            }
        elif each.is_repeated:
            values[each.name] = [
                _value(each, one, config, given, f"{path}[{i}]") for i, one in enumerate(value)
            ]
        else:
            values[each.name] = _value(each, value, config, given, path)
    return values


def _value(
    each: Any, value: Any, config: ModelConfig, given: Collection[str] | None, path: str
) -> Any:
    if each.message_type is not None:
        return _values(value, config, given, f"{path}.")
    if each.enum_type is None:
        return value
    known = each.enum_type.values_by_number.get(value)
    if known is None:
        raise config.error(path, str(value), _expected(each))
    return known.name


def _is_map(each: Any) -> bool:
    return each.message_type is not None and each.message_type.GetOptions().map_entry


def _json_keys(value: Any, message: Any, prefix: str = "") -> Iterator[str]:
    """The paths that a checked JSON object gives; what is in maps is left out."""
    for name, inner in value.items() if isinstance(value, dict) else ():  # protobuf takes [], too
        each = message.fields_by_name.get(name) or message.fields_by_camelcase_name[name]
        path = prefix + each.name
        if inner is None:
            continue
        yield path
        if each.message_type is None or _is_map(each):
            continue
        for i, one in enumerate(inner if each.is_repeated else [inner]):
            here = f"{path}[{i}]" if each.is_repeated else path
            yield from _json_keys(one, each.message_type, f"{here}.")


def _text_error(error: text_format.ParseError, text: str, source: str) -> RepositoryError:
    line, column = error.GetLine() or 1, error.GetColumn() or 1
    starts = text.split("\n")
    at = sum(len(each) + 1 for each in starts[: line - 1]) + column - 1
    before = KeyLines(text[:at], _ROOT)
    where = f"{source}:{line}: {before.path or 'ModelConfig'}"
    said = str(error).partition(" : ")[2].removeprefix(f"'{starts[line - 1]}': ")
    if unknown := _UNKNOWN.match(said):
        return _unknown_field(where, *unknown.groups())
    if _TWICE.search(said):
        return RepositoryError(where, "given twice", "once")
    if both := _BOTH.match(said):
        return RepositoryError(where, f"'{both[1]}' besides '{both[2]}'", "one of them")
    rest = text[at:].split(maxsplit=1)
    found = f"'{rest[0]}'" if rest else "end of file"
    if "${" in found:
        return RepositoryError(where, found, FILLED)
    wanted = _WANTED.match(said)
    if wanted is None:
        expected = said if before.field is None else _expected(before.field)
        return RepositoryError(where, found, expected)
    if wanted[1] in ('"}"', '">"'):  # only missed where the text ends
        found = "end of file"
    return RepositoryError(where, found, wanted[1])


def _json_error(said: str, source: str) -> RepositoryError:
    named, fields = _JSON_PATH.search(said), _JSON_FIELD.findall(said)
    path = named[1].rstrip(".") if named else ".".join(fields)
    if fields and path.rpartition(".")[2].partition("[")[0] != fields[-1]:
        path = f"{path}.{fields[-1]}" if path else fields[-1]
    where = f"{source}: {path or 'ModelConfig'}"
    said = _JSON_FIELD.sub("", said)
    if unknown := _UNKNOWN.match(said):
        return _unknown_field(where, *unknown.groups())
    each: Any = None
    message = _ROOT
    for name in re.findall(r"[A-Za-z_]\w*", path):
        each = message.fields_by_name.get(name) or message.fields_by_camelcase_name.get(name)
        if each is None:
            break
        message = each.message_type or message
    expected = "a ModelConfig as JSON" if each is None else _expected(each)
    return RepositoryError(where, said.partition(" at ModelConfig")[0].rstrip("."), expected)


def _unknown_field(where: str, message: str, name: str) -> RepositoryError:
    fields = _ROOT.file.pool.FindMessageTypeByName(message).fields_by_name
    camel = [] if name.islower() else [each.camelcase_name for each in fields.values()]
    hint = did_you_mean(name, [*camel, *fields])
    return RepositoryError(where, f"field '{name}'", f"a known one{hint}: {', '.join(fields)}")


def _expected(each: Any) -> str:
    """What a field takes."""
    if _is_map(each):
        return "a map of key and value"
    if each.enum_type is not None:
        one = f"one of {', '.join(each.enum_type.values_by_name)}"
    elif each.message_type is not None:
        one = "a message: { ... }"
    elif each.cpp_type == each.CPPTYPE_STRING:
        one = "a quoted string"
    elif each.cpp_type == each.CPPTYPE_BOOL:
        one = "true or false"
    elif each.cpp_type in (each.CPPTYPE_FLOAT, each.CPPTYPE_DOUBLE):
        one = "a number"
    else:
        bits = 64 if each.cpp_type in (each.CPPTYPE_INT64, each.CPPTYPE_UINT64) else 32
        signed = each.cpp_type in (each.CPPTYPE_INT32, each.CPPTYPE_INT64)
        one = f"an integer of {bits} bits" + ("" if signed else ", 0 or above")
    return f"a list, each {one}" if each.is_repeated else one
