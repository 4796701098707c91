"""What the operator asks for one model: ``interlace.toml``, or parameters in ``config.pbtxt``."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from interlace.core.errors import RepositoryError
from interlace.core.model import Precision
from interlace.repository.files import read_text
from interlace.repository.folder import CONFIG_BYTES
from interlace.repository.model_config import ModelConfig, nearest_name
from interlace.repository.scalars import shown, whole

FILE: Final = "interlace.toml"
#: The promise for a model whose operator states none.
DEFAULT_SLO_MS: Final = 100.0
#: The largest batch for a model that sets no bound and whose operator states none.
DEFAULT_MAX_BATCH: Final = 32
DEFAULT_QUEUE_LIMIT: Final = 4096

#: The most rows in one execution that a model may be given.
MAX_BATCH_LIMIT: Final = 65_536
_MOST_BYTES: Final = float(1 << 62)
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT]?i?)B?")
_UNITS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY: Final = {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The operator's wishes; ``None`` where nothing is said. ``lines`` are of the keys."""

    source: str = FILE
    slo_ms: float | None = None
    max_batch: int | None = None
    priority: int | None = None
    memory_limit_bytes: int | None = None
    rate_rps: float | None = None
    queue_limit: int | None = None
    precision: Precision | None = None
    compiled: bool | None = None
    sample: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)

    def where(self, key: str) -> str:
        """File, line and key, as errors name them."""
        line = self.lines.get(key)
        return f"{self.source}: {key}" if line is None else f"{self.source}:{line}: {key}"


def read_settings(folder: Path, config: ModelConfig) -> ModelSettings:
    """The wishes in ``interlace.toml`` and, where it is silent, in ``config.pbtxt``'s parameters.

    Raises:
        RepositoryError: not TOML, an unknown key, or a value that is none for its key.
    """
    fallback = _from_parameters(config)
    file = folder / FILE
    if not file.exists():
        return fallback
    try:
        text = read_text(file, CONFIG_BYTES)
    except OSError as error:
        raise RepositoryError(str(file), str(error), "a readable file") from error
    own = parse_settings(text, str(file))
    said = {name: getattr(own, name) for name in _FIELDS.values() if getattr(own, name) is not None}
    return replace(
        fallback,
        source=own.source,
        sample={**fallback.sample, **own.sample},
        lines=own.lines,
        **said,
    )


def parse_settings(text: str, source: str) -> ModelSettings:
    """Read the text of an ``interlace.toml``.

    Raises:
        RepositoryError: as ``read_settings``.
    """
    try:
        table = tomllib.loads(text)
    # Besides its own error: integers of thousands of digits, and lists within lists within lists.
    except (tomllib.TOMLDecodeError, ValueError, RecursionError) as error:
        raise RepositoryError(source, f"no TOML ({error})", "lines such as slo_ms = 50") from error
    lines = _lines(text)
    sample = table.pop("sample", {})
    empty = ModelSettings(source, lines=lines)
    if not isinstance(sample, dict):
        raise RepositoryError(empty.where("sample"), shown(sample), "a table: [sample]")
    known = {**dict.fromkeys(_READERS), "sample": None}
    for key in table:
        if key not in known:
            raise RepositoryError(empty.where(key), "an unknown key", nearest_name(key, known))
    values = {_FIELDS[key]: _read(key, value, empty.where(key)) for key, value in table.items()}
    sizes = {name: _sizes(value, empty.where(f"sample.{name}")) for name, value in sample.items()}
    return replace(empty, sample=sizes, **values)


def _from_parameters(config: ModelConfig) -> ModelSettings:
    empty = ModelSettings(config.source)
    values: dict[str, Any] = {}
    sample: dict[str, tuple[int, ...]] = {}
    for key, parameter in config.values.get("parameters", {}).items():
        text = parameter.get("string_value", "")
        where = config.where(f"parameters['{key}']")
        if key.startswith("sample."):
            parts = [part.strip() for part in text.split(",")]
            sizes = [_number(part) for part in parts]
            sample[key.removeprefix("sample.")] = _sizes(sizes, where)
        elif key in _READERS:  # other keys are some backend's
            values[_FIELDS[key]] = _read(key, _number(text), where)
    return replace(empty, sample=sample, **values)


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _read(key: str, value: Any, where: str) -> Any:
    reader, wanted = _READERS[key]
    wrong = isinstance(value, bool) and reader is not _yes_or_no
    read = None if wrong or not _bearable(value) else reader(value)
    if read is None:
        raise RepositoryError(where, shown(value), wanted)
    return read


def _bearable(value: Any) -> bool:
    """False for an integer that does not fit where integers go."""
    return not isinstance(value, int) or whole(value) is not None


def _sizes(value: Any, where: str) -> tuple[int, ...]:
    sizes = [value] if isinstance(value, int) else value
    positive = isinstance(sizes, list) and sizes and all(_whole(1)(size) for size in sizes)
    if not positive or any(isinstance(size, bool) for size in sizes):
        raise RepositoryError(where, shown(value), "a list of sizes, such as [3, 224, 224]")
    return tuple(sizes)


def _whole(least: int, most: int = 1 << 62) -> Callable[[Any], int | None]:
    def read(value: Any) -> int | None:
        return value if isinstance(value, int) and least <= value <= most else None

    return read


def _positive(value: Any) -> float | None:
    if not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        return None
    return float(value)


def _precision(value: Any) -> Precision | None:
    return next((one for one in Precision if one.value == value), None)


def _yes_or_no(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}.get(value) if isinstance(value, str) else None


def _bytes(value: Any) -> int | None:
    if isinstance(value, int):
        return value if value > 0 else None
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return None
    unit = match.group(2).lower()
    factor = _BINARY.get(unit) or _UNITS.get(unit)
    size = float(match.group(1)) * factor if factor else 0.0
    return int(size) if 1.0 <= size < _MOST_BYTES else None


def _lines(text: str) -> dict[str, int]:
    # tomllib keeps no positions; keys stand at the start of their lines.
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line):
            table = f"{header.group(1)}."
            lines.setdefault(header.group(1), number)
        elif key := re.match(r"""\s*["']?([\w.\-]+)["']?\s*=""", line):
            lines.setdefault(f"{table}{key.group(1)}", number)
    return lines


_READERS: Final[dict[str, tuple[Callable[[Any], Any], str]]] = {
    "slo_ms": (_positive, "a time in ms above 0"),
    "max_batch": (_whole(0, MAX_BATCH_LIMIT), "a whole number of rows; 0 for no batching"),
    "priority": (_whole(0), "a whole number; 0 for none, 1 for the most urgent"),
    "memory_limit": (_bytes, 'a size above 0, such as 536870912 or "512MB"'),
    "rate_rps": (_positive, "requests per second above 0"),
    "queue_limit": (_whole(1), "a whole number of requests above 0"),
    "precision": (_precision, ", ".join(f'"{one.value}"' for one in Precision)),
    "compile": (_yes_or_no, "true or false"),
}
_RENAMED: Final = {"memory_limit": "memory_limit_bytes", "compile": "compiled"}
_FIELDS: Final = {key: _RENAMED.get(key, key) for key in _READERS}
