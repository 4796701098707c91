"""A model's configuration as clients read it: ModelConfig as JSON, in Triton's form."""

from __future__ import annotations

from typing import Any, Final

from interlace.core.model import MODEL_FILES, Format, Model
from interlace.core.tensor import TensorSpec
from interlace.repository.folder import PROFILE_FILE
from interlace.repository.model_config import DATA_TYPES, ModelConfig

#: (platform, backend) of each format, Triton's own where it has one.
_PLATFORMS: Final[dict[Format, tuple[str, str]]] = {
    Format.ONNX: ("onnxruntime_onnx", "onnxruntime"),
    Format.TORCHSCRIPT: ("pytorch_libtorch", "pytorch"),
    Format.EXPORTED: ("pytorch_export", "pytorch"),
    Format.HUGGINGFACE: ("huggingface", "huggingface"),
    Format.FACTORY: ("python", "python"),
    Format.PYTHON: ("python", "python"),
    Format.TENSORRT: ("tensorrt_plan", "tensorrt"),
    Format.ENSEMBLE: ("ensemble", ""),
    Format.PROFILE: ("simulated", "simulated"),
}
#: Labels are part of the reply up to this size: about ten times those of ImageNet.
_LABELS_LIMIT_CHARS: Final = 256_000
_TYPES: Final = {datatype: name for name, datatype in DATA_TYPES.items()}
#: Parts of a config that are given back as they were written.
_AS_WRITTEN: Final = (
    "instance_group", "optimization", "metric_tags", "model_warmup", "ensemble_scheduling",
    "sequence_batching",
)  # fmt: skip


def config_json(model: Model, config: ModelConfig) -> dict[str, Any]:
    """ModelConfig with snake_case names and integers as numbers, as Triton renders it.

    Dims exclude the rows; ``max_batch_size`` is 0 for a model without batching. Labels of an
    output are in ``parameters`` under ``labels:NAME``, one a line, which is how a client gets the
    alphabet of a text recogniser.
    """
    signature = model.for_clients.signature
    platform, backend = _PLATFORMS[model.format]
    values = config.values
    rendered: dict[str, Any] = {
        "name": model.name,
        "platform": platform,
        "backend": backend,
        "runtime": "",
        "version_policy": values.get("version_policy") or {"latest": {"num_versions": 1}},
        "max_batch_size": signature.max_batch if signature.batched else 0,
        "input": [_input(spec) for spec in signature.inputs],
        "output": [_output(spec, config) for spec in signature.outputs],
        "batch_input": [],
        "batch_output": [],
        "optimization": {"priority": "PRIORITY_DEFAULT"},
        "instance_group": [
            {"name": f"{model.name}_0", "kind": "KIND_CPU", "count": 1, "gpus": [], "profile": []}
        ],
        "default_model_filename": _filename(model),
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": _parameters(model, config),
        "model_warmup": [],
        "model_transaction_policy": {"decoupled": signature.decoupled},
    }
    rendered |= {key: values[key] for key in _AS_WRITTEN if values.get(key)}
    if model.format is Format.ENSEMBLE:
        rendered["instance_group"] = []
    elif signature.batched and "sequence_batching" not in rendered:
        rendered["dynamic_batching"] = _dynamic_batching(config)
    return rendered


def _filename(model: Model) -> str:
    if model.format is Format.PROFILE:
        return PROFILE_FILE
    return model.file.partition("/")[0] or MODEL_FILES.get(model.format, "")


def _input(spec: TensorSpec) -> dict[str, Any]:
    return _reshape(spec) | {
        "name": spec.name,
        "data_type": _TYPES[spec.datatype],
        "format": "FORMAT_NONE",
        "dims": list(spec.dims),
        "is_shape_tensor": False,
        "allow_ragged_batch": False,
        "optional": spec.optional,
        "is_non_linear_format_io": False,
    }


def _output(spec: TensorSpec, config: ModelConfig) -> dict[str, Any]:
    written: dict[str, Any] = next(
        (output for output in config.values.get("output", []) if output["name"] == spec.name), {}
    )
    return _reshape(spec) | {
        "name": spec.name,
        "data_type": _TYPES[spec.datatype],
        "dims": list(spec.dims),
        "label_filename": written.get("label_filename", ""),
        "is_shape_tensor": False,
        "is_non_linear_format_io": False,
    }


def _reshape(spec: TensorSpec) -> dict[str, Any]:
    return {} if spec.model_dims is None else {"reshape": {"shape": list(spec.model_dims)}}


def _dynamic_batching(config: ModelConfig) -> dict[str, Any]:
    written: dict[str, Any] = config.values.get("dynamic_batching", {})
    silent: dict[str, Any] = {
        "preferred_batch_size": [],
        "max_queue_delay_microseconds": 0,
        "preserve_ordering": False,
        "priority_levels": 0,
        "default_priority_level": 0,
        "priority_queue_policy": {},
    }
    return silent | written


def _parameters(model: Model, config: ModelConfig) -> dict[str, Any]:
    terms = model.terms
    parameters = dict(config.values.get("parameters", {}))
    said = {"slo_ms": f"{terms.slo_ms:g}"}
    if terms.priority:
        said["priority"] = str(terms.priority)
    for name, sizes in model.sample.items():  # what a load generator should send
        said[f"sample.{name}"] = ", ".join(map(str, sizes))
    for name, labels in model.labels.items():
        text = "\n".join(labels)
        if len(text) <= _LABELS_LIMIT_CHARS:
            said[f"labels:{name}"] = text
    return parameters | {key: {"string_value": text} for key, text in said.items()}
