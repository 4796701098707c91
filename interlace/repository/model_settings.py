"""What the operator asks for one model: ``interlace.toml``, or parameters in ``config.pbtxt``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, structs

from interlace.core.errors import RepositoryError
from interlace.core.model import Precision
from interlace.core.tables import MOST_BYTES, TableError, parse_bytes, read_table, toml_lines
from interlace.repository.app_table import AppTable, parse_toml
from interlace.repository.folder import CONFIG_BYTES, SETTINGS_FILE, read_text
from interlace.repository.model_config import ModelConfig

#: The promise for a model whose operator states none.
DEFAULT_SLO_MS: Final = 100.0
#: The largest batch for a model that sets no bound and whose operator states none.
DEFAULT_MAX_BATCH: Final = 32
DEFAULT_QUEUE_LIMIT: Final = 4096

#: The most rows in one execution that a model may be given.
MAX_BATCH_LIMIT: Final = 65_536
_MOST: Final = MOST_BYTES


class ByteSize(int):
    """A number of bytes, given as such or as text with a unit: ``"512MB"``, ``"1.5 GiB"``."""


class Sizes(tuple[int, ...]):
    """Sizes of dims, given as a list, as one number, or as text: ``"224, 224"``."""


_Time = Annotated[float, Meta(gt=0, le=_MOST, description="a time in ms above 0")]
_Rate = Annotated[float, Meta(gt=0, le=_MOST, description="requests per second above 0")]
_ROWS: Final = "a whole number of rows; 0 for no batching"
_Rows = Annotated[int, Meta(ge=0, le=MAX_BATCH_LIMIT, description=_ROWS)]
_PRIORITY: Final = "a whole number; 0 for none, 1 for the most urgent"
_Priority = Annotated[int, Meta(ge=0, le=_MOST, description=_PRIORITY)]
_REQUESTS: Final = "a whole number of requests above 0"
_Requests = Annotated[int, Meta(ge=1, le=_MOST, description=_REQUESTS)]
_BYTES: Final = 'a size above 0, such as 536870912 or "512MB"'
_Bytes = Annotated[ByteSize, Meta(description=_BYTES)]
_PRECISIONS: Final = ", ".join(f'"{each.value}"' for each in Precision)
_Precision = Annotated[Precision, Meta(description=_PRECISIONS)]
_SIZES: Final = (
    'a list of sizes, such as [3, 224, 224], or { value = ... }, such as { value = ["text"] }'
)
_Sample = Annotated[Sizes, Meta(description=_SIZES)]
_KEPT: Final = "a time in seconds, 0 or more"
_Kept = Annotated[float, Meta(ge=0, le=_MOST, description=_KEPT)]


_MEGABYTES: Final = "a number of MB above 0"
_Megabytes = Annotated[float, Meta(gt=0, le=_MOST / 1e6, description=_MEGABYTES)]


class MemoryTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Table ``[memory]``: how weights are swapped (`interlace serve --memory`).

    Keys:
        resident: load the weights at the start and keep them.
        keep_s: keep the weights for this time after a batch.
        max_mb: limit of the model's resident weights.
    """

    resident: bool = False
    keep_s: _Kept = 0.0
    max_mb: _Megabytes | None = None


class BatchingTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Table ``[batching]``: how a Python backend model receives a batch.

    Keys:
        stack: pass one request with the rows of the whole batch to execute.
    """

    stack: bool = False


class StreamTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Table ``[stream]``: what a decoupled model promises beside ``slo_ms``, which is for the last.

    Keys:
        first_response_ms: SLO of the first response, from arrival.
        gap_ms: SLO of the time between two responses.
    """

    first_response_ms: _Time | None = None
    gap_ms: _Time | None = None


_Samples = Annotated[dict[str, _Sample], Meta(description="a table: [sample]")]


class SettingsTable(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename={"memory_limit_bytes": "memory_limit", "compiled": "compile"},
):
    """The keys of ``interlace.toml``; ``None`` if a key is not set.

    Keys:
        slo_ms: SLO, from arrival to answer. A load of the model reads a new value.
        max_batch: most rows in one execution.
        priority: order of requests; 1 is the most urgent, larger is later.
        memory_limit: limit of the model's memory in one worker.
        rate_rps: request rate to plan for before any request.
        queue_limit: most requests that wait.
        precision: arithmetic on GPUs. auto takes the fastest whose results stay within 2 %.
        compile: run the model through torch.compile on GPUs.
        memory: how weights are swapped.
        batching: how a Python backend model receives a batch.
        stream: SLOs of the responses of a decoupled model.
        sample: sizes of free dims by input, or values, for profiling and warm-up.
        app: several models as one endpoint, in a folder without a model file.
    """

    slo_ms: _Time | None = None
    max_batch: _Rows | None = None
    priority: _Priority | None = None
    memory_limit_bytes: _Bytes | None = None
    rate_rps: _Rate | None = None
    queue_limit: _Requests | None = None
    precision: _Precision | None = None
    compiled: bool | None = None
    memory: MemoryTable = MemoryTable()
    batching: BatchingTable = BatchingTable()
    stream: StreamTable = StreamTable()
    sample: _Samples = {}
    app: AppTable | None = None


#: Keys that ``config.pbtxt`` may have, too, among its parameters.
_PARAMETERS: Final = frozenset(field.encode_name for field in structs.fields(SettingsTable)) - {
    "sample",
    "memory",
    "batching",
    "app",
    "stream",
}


class ModelSettings(SettingsTable, frozen=True, kw_only=True):
    """What the operator asks for, with the file that says so and the lines of its keys."""

    source: str = SETTINGS_FILE
    lines: Mapping[str, int] = {}
    values: Mapping[str, dict[str, Any]] = {}  #: of ``[sample]``, those that are tables

    def where(self, key: str) -> str:
        """File, line and key, as errors name them."""
        line = self.lines.get(key)
        return f"{self.source}: {key}" if line is None else f"{self.source}:{line}: {key}"


def read_settings(folder: Path, config: ModelConfig) -> ModelSettings:
    """What ``interlace.toml`` asks for and, where it is silent, ``config.pbtxt``'s parameters.

    Raises:
        RepositoryError: not TOML, an unknown key, or a value that does not fit its key.
    """
    fallback = _from_parameters(config)
    file = folder / SETTINGS_FILE
    if not file.exists():
        return fallback
    own = parse_settings(read_text(file, CONFIG_BYTES), str(file))
    said = {key: value for key, value in structs.asdict(own).items() if value is not None}
    return structs.replace(fallback, **said | {"sample": {**fallback.sample, **own.sample}})


def parse_settings(text: str, source: str) -> ModelSettings:
    """Read the text of an ``interlace.toml``.

    Raises:
        RepositoryError: as ``read_settings``.
    """
    table = parse_toml(text, source)
    sample = table.get("sample")
    values: dict[str, dict[str, Any]] = {}
    if isinstance(sample, dict):
        values = {name: one for name, one in sample.items() if isinstance(one, dict)}
        table["sample"] = {name: one for name, one in sample.items() if name not in values}
    empty = ModelSettings(source=source, lines=toml_lines(text), values=values)
    return structs.replace(empty, **_checked(table, empty.where))


def _from_parameters(config: ModelConfig) -> ModelSettings:
    texts: dict[str, Any] = {}
    sample: dict[str, str] = {}
    for key, parameter in config.values.get("parameters", {}).items():
        text = parameter.get("string_value", "")
        if key in _PARAMETERS:  # other keys are some backend's
            texts[key] = text
        elif key.startswith("sample."):
            sample[key.removeprefix("sample.")] = text
    values = _checked(
        {**texts, "sample": sample}, lambda key: config.where(f"parameters['{key}']"), strict=False
    )
    return ModelSettings(source=config.source, **values)


def _checked(table: object, where: Callable[[str], str], strict: bool = True) -> dict[str, Any]:
    """The fields of a table; ``strict=False`` reads numbers that are given as text."""
    try:
        read = read_table(table, SettingsTable, strict=strict, dec_hook=_decode)
    except TableError as error:
        raise RepositoryError(where(error.key), error.found, error.expected) from error
    fields = structs.asdict(read)
    # Frames between processes take plain numbers and tuples, not their subclasses.
    if read.memory_limit_bytes is not None:
        fields["memory_limit_bytes"] = int(read.memory_limit_bytes)
    fields["sample"] = {name: tuple(sizes) for name, sizes in read.sample.items()}
    return fields


def _decode(kind: type, value: Any) -> ByteSize | Sizes:
    """What msgspec cannot read by itself.

    Raises:
        ValueError: it is none.
    """
    return _bytes(value) if kind is ByteSize else _sizes(value)


def _bytes(value: Any) -> ByteSize:
    if isinstance(value, str):
        return ByteSize(parse_bytes(value))
    size = value if type(value) is int else 0
    if not 1 <= size < _MOST:
        raise ValueError("no size")
    return ByteSize(size)


def _sizes(value: Any) -> Sizes:
    if isinstance(value, str):
        value = [int(part) for part in value.split(",")]
    sizes = value if isinstance(value, list) else [value]
    if not sizes or not all(type(size) is int and 1 <= size <= _MOST for size in sizes):
        raise ValueError("no sizes")
    return Sizes(sizes)
