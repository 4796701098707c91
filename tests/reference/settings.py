"""docs/settings.md: every key of interlace.toml and of scenario files."""

import re
from collections.abc import Iterator, Mapping

import msgspec
from msgspec import structs

from interlace.core.model import STREAM_SLO_MS
from interlace.core.tables import _expected
from interlace.planning.scenario_file import (
    GpuTable,
    ScenarioAppTable,
    ScenarioModel,
    ScenarioStage,
    ScenarioTable,
)
from interlace.repository.app_table import AppStage, AppTable, AppTensor
from interlace.repository.model_settings import (
    DEFAULT_MAX_BATCH,
    DEFAULT_QUEUE_LIMIT,
    DEFAULT_SLO_MS,
    BatchingTable,
    MemoryTable,
    SettingsTable,
    StreamTable,
)
from interlace.sim.arrivals import WorkloadTable
from interlace.sim.workload.parse import _ANY

from .markdown import described, sentence, table

_START = """# Settings

## interlace.toml

One file in each model's folder; every key may be left out. `config.pbtxt` may have the same keys as
`parameters`, except tables, and `sample.NAME` for sizes. A key in `interlace.toml` takes
precedence. See [model repository](repository.md).
"""
_SCENARIO = """
## Scenario files

Read by `interlace plan`, `simulate`, `page` and `fleet simulate`. File names are relative to the
scenario. See [planning](planning.md).
"""
_WORKLOAD = """
### `[models.NAME.workload]`

`kind` chooses the arrivals; without it, `gamma`. See [workloads](workloads.md).

"""
#: Where no value is a value by itself: what applies then.
_UNSET: Mapping[str, str] = {
    "slo_ms": f"{DEFAULT_SLO_MS:g} or [more](slo.md#without-an-slo); "
    f"{STREAM_SLO_MS:g} for a decoupled model",
    "max_batch": f"the model's bound, else {DEFAULT_MAX_BATCH}",
    "queue_limit": str(DEFAULT_QUEUE_LIMIT),
    "priority": "0",
    "precision": '"fp32"',
    "compile": "false",
    "sample": "sizes of 64",
}


def page() -> str:
    return "\n".join(
        [
            _START,
            *_table(SettingsTable, _UNSET),
            "\n### `[batching]`\n",
            *_table(BatchingTable),
            "\n### `[memory]`\n",
            *_table(MemoryTable),
            "\n### `[app]`\n",
            *_table(AppTable),
            "\n### `[app.stages.NAME]`\n",
            *_table(AppStage),
            "\n### `[app.inputs]` and `[app.outputs]`, each tensor\n",
            *_table(AppTensor),
            "\n### `[stream]`\n",
            *_table(StreamTable, {"first_response_ms": "none", "gap_ms": "none"}),
            _SCENARIO,
            *_table(ScenarioTable),
            "\n### `[gpu]`\n",
            *_table(GpuTable),
            "\n### `[models.NAME]`\n",
            *_table(ScenarioModel),
            "\n### `[apps.NAME]`\n",
            *_table(ScenarioAppTable),
            "\n### `[apps.NAME.stages.STAGE]`\n",
            *_table(ScenarioStage),
            _WORKLOAD + "\n".join(_kinds()) + "\n",
            *_workload_keys(),
            "",
        ]
    )


def _table(kind: type[msgspec.Struct], unset: Mapping[str, str] | None = None) -> list[str]:
    texts = described(kind)
    fields = structs.fields(kind)
    assert set(texts) == {field.encode_name for field in fields}, kind
    rows = [
        [f"`{one.encode_name}`", _type(one), _default(one, unset or {}), texts[one.encode_name]]
        for one in fields
    ]
    return table(["key", "type", "default", "meaning"], [[*r[:3], sentence(r[3])] for r in rows])


def _type(field: structs.FieldInfo) -> str:
    """What a field takes, as errors say it."""
    text = _expected(field.type)
    if "a table with" in text:
        text = text.partition("a table with")[0] + "a table"
    if "each value something else" in text:
        return "table"
    text = text.replace(" and of at most 1e+12", "")
    return re.sub(r" from (\S+) to 1e\+12", r" of at least \1", text).removeprefix("a ")


def _default(field: structs.FieldInfo, unset: Mapping[str, str]) -> str:
    if field.encode_name in unset:
        return unset[field.encode_name]
    if field.required:
        return "required"
    if field.default in (None, msgspec.NODEFAULT) or isinstance(field.default, msgspec.Struct):
        return "-"
    return msgspec.json.encode(field.default).decode()


def _by_kind() -> Iterator[tuple[str, type[msgspec.Struct]]]:
    for one in _ANY.__args__:
        yield str(one.__struct_config__.tag), one


def _kinds() -> list[str]:
    rows = [
        [f"`{tag}`", ", ".join(f"`{field}`" for field in one.__struct_fields__)]
        for tag, one in _by_kind()
    ]
    return table(["kind", "keys"], rows)


def _workload_keys() -> list[str]:
    texts = described(WorkloadTable)
    fields: dict[str, structs.FieldInfo] = {}
    for _, one in _by_kind():
        for field in structs.fields(one):
            fields.setdefault(field.encode_name, field)
    assert set(texts) == set(fields), set(texts) ^ set(fields)
    rows = [
        [
            f"`{name}`",
            _type(fields[name]),
            "the model's" if name in ("rate_rps", "cv") else _default(fields[name], {}),
            sentence(text.partition(" Without it, the model's")[0]),
        ]
        for name, text in texts.items()
    ]
    return table(["key", "type", "default", "meaning"], rows)
