"""Apps in ``interlace.toml``: stages over models, read as ensembles of Triton."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from interlace.core.errors import RepositoryError
from interlace.core.tables import TableError, read_table, toml_lines
from interlace.repository.model_config import DATA_TYPES, ModelConfig

_TYPES: Final = {datatype: name for name, datatype in DATA_TYPES.items()}
_Datatype = Annotated[
    str, Meta(pattern=f"^({'|'.join(_TYPES)})$", description=f"one of {', '.join(_TYPES)}")
]
_NAMED: Final = 'a table of names, such as { x = "picture" }'
_Map = Annotated[dict[str, str], Meta(min_length=1, description=_NAMED)]
_ROWS: Final = "rows of a request on average, 0 or more"
_STEP: Final = "ensemble_scheduling.step"


class AppTensor(Struct, forbid_unknown_fields=True, frozen=True):
    """A tensor of ``[app.inputs]`` or ``[app.outputs]``.

    Keys:
        datatype: FP32, UINT8, BYTES or another of the protocol.
        dims: sizes without the rows; -1 is free.
        optional: an input that requests may leave out.
    """

    datatype: _Datatype
    dims: list[int]
    optional: bool = False


class AppStage(Struct, forbid_unknown_fields=True, frozen=True):
    """Table ``[app.stages.NAME]``: one model of an app.

    Keys:
        model: its name.
        inputs: the app's tensor for each input of the model.
        outputs: the app's tensor for each output that is used.
        version: of the model; 0 is the newest.
        rows: rows of a request on average, such as the crops of a picture, to plan with.
    """

    model: str
    inputs: _Map
    outputs: _Map
    version: Annotated[int, Meta(ge=0)] = 0
    rows: Annotated[float, Meta(ge=0, le=1e6, description=_ROWS)] = 1.0


class AppTable(Struct, forbid_unknown_fields=True, frozen=True):
    """Table ``[app]``: several models as one endpoint.

    Keys:
        inputs: tensors of a request.
        outputs: tensors of an answer.
        stages: the models, in any order.
    """

    inputs: dict[str, AppTensor]
    outputs: dict[str, AppTensor]
    stages: dict[str, AppStage]


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """The tables of an ``interlace.toml``.

    Raises:
        RepositoryError: it is no TOML.
    """
    try:
        return tomllib.loads(text)
    # Besides its own error: integers of thousands of digits, and lists within lists within lists.
    except (ValueError, RecursionError) as error:
        raise RepositoryError(source, f"no TOML ({error})", "lines such as slo_ms = 50") from error


def app_config(text: str, source: str) -> ModelConfig | None:
    """The app in an ``interlace.toml``, as a config of an ensemble; ``None`` if it has none.

    Errors about the config name the keys and lines of this file.

    Raises:
        RepositoryError: it is no TOML, or its table ``[app]`` has a wrong key or value.
    """
    table = parse_toml(text, source) if "app" in text else {}
    if "app" not in table:
        return None
    lines = toml_lines(text)
    try:
        app = read_table(table["app"], AppTable, "app")
    except TableError as error:
        where = ModelConfig(source, lines=lines).where(error.key)
        raise RepositoryError(where, error.found, error.expected) from error
    steps = [_step(stage) for stage in app.stages.values()]
    values = {
        "platform": "ensemble",
        "max_batch_size": table.get("max_batch", 0),
        "input": [_tensor(name, one) for name, one in app.inputs.items()],
        "output": [_tensor(name, one) for name, one in app.outputs.items()],
        "ensemble_scheduling": {"step": steps},
    }
    keys = {f"{_STEP}[{place}]": f"app.stages.{name}" for place, name in enumerate(app.stages)}
    keys |= {f"input[{place}]": f"app.inputs.{name}" for place, name in enumerate(app.inputs)}
    keys |= {f"output[{place}]": f"app.outputs.{name}" for place, name in enumerate(app.outputs)}
    keys |= {_STEP: "app.stages", "input_map": "inputs", "output_map": "outputs"}
    keys |= {"model_name": "model", "max_batch_size": "max_batch"}
    return ModelConfig(source, values, lines, keys)


def _step(stage: AppStage) -> Mapping[str, Any]:
    return {
        "model_name": stage.model,
        "model_version": stage.version or -1,
        "input_map": stage.inputs,
        "output_map": stage.outputs,
    }


def _tensor(name: str, one: AppTensor) -> Mapping[str, Any]:
    optional = {"optional": True} if one.optional else {}
    return {"name": name, "data_type": _TYPES[one.datatype], "dims": one.dims, **optional}
