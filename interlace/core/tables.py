"""Tables and sizes in configuration files: errors name the place, the value and what is valid."""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import partial
from types import MappingProxyType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import inspect, structs

MOST_BYTES: Final = 1 << 62
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT]?i?)B?")
_UNITS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "": 1,
        **{letter: 1000**power for power, letter in enumerate("kmgt", start=1)},
        **{f"{letter}i": 1024**power for power, letter in enumerate("kmgt", start=1)},
    }
)


def parse_bytes(text: str) -> int:
    """The number in ``"536870912"``, ``"512MB"`` or ``"1.5 GiB"``.

    Raises:
        ValueError: it is none, or not above 0.
    """
    match = _SIZE.fullmatch(text.strip())
    size = float(match[1]) * _UNITS.get(match[2].lower(), 0) if match else 0.0
    if not 1 <= size < MOST_BYTES:
        raise ValueError(f"'{text}' is no number of bytes")
    return int(size)


def toml_lines(text: str) -> dict[str, int]:
    """The lines of a TOML text's keys; tomllib keeps none. Keys start their lines."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line):
            table = f"{header.group(1)}."
            lines.setdefault(header.group(1), number)
        elif key := re.match(r"""\s*["']?([\w.\-]+)["']?\s*=""", line):
            lines.setdefault(f"{table}{key.group(1)}", number)
    return lines


T = TypeVar("T")
_Legal = Callable[[Any, Any], bool]

#: Letters of a value that an error shows.
_LONGEST: Final = 60
#: Letters of a name that near ones are looked for by; difflib is slow on hostile ones.
_LONGEST_NAME: Final = 128
#: What a parsed table or list can be meant as.
_SHAPES: Final[Mapping[type, Any]] = MappingProxyType(
    {dict: inspect.DictType, list: (inspect.CollectionType, inspect.TupleType)}
)
_AT: Final = re.compile(r" - at `\$(.*)`$")
_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`$")
_MISSING: Final = re.compile(r"Object missing required field `(.*)`$")


class TableError(ValueError):
    """A table that is not what it should be: which ``key``, what was ``found`` and ``expected``."""

    def __init__(self, key: str, found: str, expected: str) -> None:
        super().__init__(f"{key or 'the table'} is {found}; expected {expected}")
        self.key, self.found, self.expected = key, found, expected


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """A hint at the name that was meant, such as `` (did you mean resnet50?)``; else nothing."""
    found = get_close_matches(name[:_LONGEST_NAME], list(names), n=1)
    return f" (did you mean {found[0]}?)" if found else ""


def counted(count: int, noun: str) -> str:
    """How many of a countable noun: ``1 GPU``, ``2 GPUs``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def read_json(text: bytes, what: str) -> Any:
    """JSON as Python values; ``what`` the text is to be, for errors.

    Raises:
        TableError: it is no JSON.
    """
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TableError("it", f"no JSON ({_cut(str(error))})", what) from None


def read_table(
    table: object,
    kind: type[T],
    where: str = "",
    *,
    strict: bool = True,
    dec_hook: Callable[[type, Any], Any] | None = None,
) -> T:
    """A parsed TOML or JSON table as ``kind``: a ``msgspec.Struct`` or dataclass with bounds.

    ``where`` is the key of the table in its file; the keys in errors begin with it. ``strict`` and
    ``dec_hook`` are those of ``msgspec.convert``. What an error says is expected is the
    ``description`` of the field's ``Meta``, or without one its type and bounds.

    Raises:
        TableError: a key is missing or unknown, or its value is not of its type or bounds.
    """
    try:
        return msgspec.convert(table, kind, strict=strict, dec_hook=dec_hook)
    except msgspec.ValidationError as error:
        legal = partial(_legal, strict=strict, dec_hook=dec_hook)
        raise _explained(str(error), table, kind, where, legal) from None


def _explained(message: str, value: Any, kind: Any, where: str, legal: _Legal) -> TableError:
    """msgspec's message, with the value that it is about and everything expected of it."""
    at = _AT.search(message)
    for name, index in _STEP.findall(at[1] if at else ""):
        key, value, kind = _step(name or index, value, kind, legal)
        where += f"[{key}]" if index.isdigit() else f".{key}" if where else key
    plain = message[: at.start()] if at else message
    prefix = f"{where}." if where else ""
    fields = _fields(_chosen(kind, value))
    if unknown := _UNKNOWN.match(plain):
        hint = did_you_mean(unknown[1], fields)
        return TableError(
            prefix + unknown[1], "an unknown key", f"one of {', '.join(fields)}{hint}"
        )
    if missing := _MISSING.match(plain):
        return TableError(prefix + missing[1], "missing", _expected(fields[missing[1]]))
    names = map(str, get_args(kind)) if get_origin(kind) is Literal else ()
    hint = did_you_mean(value, names) if isinstance(value, str) else ""
    return TableError(where, _shown(value), f"{_expected(kind)}{hint}")


def _step(step: str, value: Any, kind: Any, legal: _Legal) -> tuple[str, Any, Any]:
    """One step down: the key, its value and type. msgspec calls every key of a dict ``...``."""
    chosen = _chosen(kind, value)
    if step.isdigit():
        kinds = get_args(chosen)
        fixed = get_origin(chosen) is tuple and kinds[1:] != (...,)
        return step, value[int(step)], kinds[int(step) if fixed else 0]
    if step == "...":
        inner = get_args(chosen)[1]
        key = next(key for key, one in value.items() if not legal(one, inner))
        return key, value[key], inner
    return step, value[step], _fields(chosen)[step]


def _legal(value: object, kind: Any, strict: bool, dec_hook: Any) -> bool:
    try:
        msgspec.convert(value, kind, strict=strict, dec_hook=dec_hook)
    except msgspec.ValidationError:
        return False
    return True


def _chosen(kind: Any, value: object) -> Any:
    """Of a choice of types, the one that a value like this is to be; all if that is not clear."""
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if not _is_union(kind):
        return kind
    for one in get_args(kind):
        info = inspect.type_info(one)
        if isinstance(info, inspect.StructType) and isinstance(value, dict):
            if info.tag_field is None or value.get(info.tag_field) == info.tag:
                return _chosen(one, value)
        elif isinstance(info, _SHAPES.get(type(value), ())):
            return _chosen(one, value)
    return kind


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


def _fields(kind: Any) -> dict[str, Any]:
    """Types by key of a struct or dataclass; of structs told apart by a key, that key's as well."""
    found: dict[str, Any] = {}
    for one in get_args(kind) if _is_union(kind) else (kind,):
        info = inspect.type_info(one)
        if isinstance(info, inspect.StructType):
            found |= {field.encode_name: field.type for field in structs.fields(info.cls)}
            if info.tag_field is not None:
                tags = (*get_args(found.get(info.tag_field)), info.tag)
                found[info.tag_field] = Literal.__getitem__(tags)
        elif isinstance(info, inspect.DataclassType):
            found |= get_type_hints(info.cls, include_extras=True)
    return found


def _shown(value: object) -> str:
    """A value as TOML writes it; of tables and long lists, what they are."""
    if isinstance(value, dict):
        return f"a table with {', '.join(value) or 'nothing'}"
    if isinstance(value, bool):
        return str(value).lower()
    try:
        shown = repr(value)
    except ValueError as error:  # an integer of thousands of digits
        shown = f"{type(value).__name__} ({error})"
    return _cut(shown)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _expected(kind: Any) -> str:
    return _words(inspect.type_info(kind))


def _words(info: inspect.Type) -> str:
    """What a type takes."""
    match info:
        case inspect.Metadata():
            described = (info.extra_json_schema or {}).get("description")
            return str(described or _words(info.type))
        case inspect.IntType() | inspect.FloatType():
            whole = "whole " if isinstance(info, inspect.IntType) else ""
            return f"a {whole}number{_bounds(info)}"
        case inspect.StrType():
            return "a string"
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType():
            return f"one of {', '.join(map(str, info.values))}"
        case inspect.TupleType():
            return f"a list of {len(info.item_types)}: {', '.join(map(_words, info.item_types))}"
        case inspect.CollectionType():
            some = " that is not empty" if info.min_length else ""
            return f"a list{some}, each item {_words(info.item_type)}"
        case inspect.DictType():
            return f"a table, each value {_words(info.value_type)}"
        case inspect.StructType() | inspect.DataclassType():
            return f"a table with {', '.join(field.encode_name for field in info.fields)}"
        case inspect.UnionType():
            kinds = [one for one in info.types if not isinstance(one, inspect.NoneType)]
            return " or ".join(dict.fromkeys(map(_words, kinds)))
    return "something else"


def _bounds(info: inspect.IntType | inspect.FloatType) -> str:
    if info.ge is not None and info.le is not None:
        return f" from {info.ge:g} to {info.le:g}"
    said = (
        "" if info.gt is None else f" above {info.gt:g}",
        "" if info.ge is None else f" of at least {info.ge:g}",
        "" if info.lt is None else f" below {info.lt:g}",
        "" if info.le is None else f" of at most {info.le:g}",
    )
    return " and".join(filter(None, said))
