"""ModelConfig given as JSON, as a load request may carry it to override ``config.pbtxt``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from interlace.core.errors import RepositoryError
from interlace.repository.model_config import ModelConfig, nearest_name
from interlace.repository.scalars import expected, shown, whole
from interlace.repository.schema import MODEL_CONFIG, Choice, Field, Message, Scalar

_QUOTED: Final = re.compile(r"-?[0-9]{1,19}")
_DEPTH_LIMIT: Final = 32
_HUMP: Final = re.compile(r"(?<=[a-z0-9])([A-Z])")


def parse_json(text: str, source: str = "config (JSON)") -> ModelConfig:
    """Read a configuration from JSON: field names in snake_case or lowerCamelCase.

    Raises:
        RepositoryError: not JSON, an unknown field, or a value of the wrong type.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RepositoryError(source, f"no JSON ({error})", "a ModelConfig as JSON") from error
    if not isinstance(value, dict):
        raise RepositoryError(source, type(value).__name__, "a JSON object: a ModelConfig")
    return ModelConfig(source, _message(MODEL_CONFIG, value, source, ""))


def _message(fields: Message, value: Any, source: str, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RepositoryError(f"{source}: {path}", shown(value), "an object")
    read: dict[str, Any] = {}
    for given, inner in value.items():
        name = given if given in fields else _HUMP.sub(lambda m: f"_{m.group().lower()}", given)
        key = f"{path}.{name}" if path else name
        if name not in fields:
            raise RepositoryError(f"{source}: {key}", "unknown field", nearest_name(name, fields))
        if inner is not None:
            read[name] = _field(fields[name], inner, source, key)
    return read


def _field(field: Field, value: Any, source: str, key: str) -> Any:
    if field.keyed:
        if not isinstance(value, dict):
            raise RepositoryError(f"{source}: {key}", shown(value), "an object")
        return {name: _one(field, inner, source, f"{key}.{name}") for name, inner in value.items()}
    if field.repeated:
        if not isinstance(value, list):
            raise RepositoryError(f"{source}: {key}", shown(value), "a list")
        return [_one(field, inner, source, f"{key}[{n}]") for n, inner in enumerate(value)]
    return _one(field, value, source, key)


def _one(field: Field, value: Any, source: str, key: str) -> Any:
    if field.kind is None:
        if not _plain(value, _DEPTH_LIMIT):
            found = "lists within lists, or an integer too large"
            raise RepositoryError(f"{source}: {key}", found, "a model configuration")
        return value
    if isinstance(field.kind, Mapping):
        return _message(field.kind, value, source, key)
    read = _scalar(field.kind, value)
    if read is None:
        raise RepositoryError(f"{source}: {key}", shown(value), expected(field))
    return read


def _scalar(kind: Scalar | Choice, value: Any) -> Any:
    match kind, value:
        case (Scalar.BOOL, bool()) | (Scalar.STRING, str()):
            return value
        case (Scalar.INT, int()) if not isinstance(value, bool):
            return whole(value)
        case (Scalar.INT, str()) if _QUOTED.fullmatch(value):  # JSON of protobuf quotes int64
            return whole(int(value))
        case (Scalar.FLOAT, int()) if not isinstance(value, bool):
            return None if whole(value) is None else float(value)
        case (Scalar.FLOAT, float()):
            return value
        case (Choice(names=names), str()) if value in names:
            return value
        case (Choice(names=names), int()) if 0 <= value < len(names):
            return names[value]
    return None


def _plain(value: Any, depth: int) -> bool:
    """True for a value that nothing checks further, if others can write it again."""
    if isinstance(value, dict):
        return depth > 0 and all(_plain(inner, depth - 1) for inner in value.values())
    if isinstance(value, list):
        return depth > 0 and all(_plain(inner, depth - 1) for inner in value)
    return not isinstance(value, int) or whole(value) is not None
