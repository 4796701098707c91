"""Triton's ModelConfig as data: which fields there are, and of what type."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple


class Scalar(Enum):
    """Types of single values in protobuf text."""

    STRING = "a quoted string"
    INT = "an integer"
    BOOL = "true or false"
    FLOAT = "a number"


class Choice(NamedTuple):
    """An enum: one of these names, or its number."""

    names: tuple[str, ...]


class Field(NamedTuple):
    """One field. ``kind`` is its type, or the type of its elements or of its map's values.

    ``kind=None`` is a message whose contents are read but not checked.
    """

    kind: Scalar | Choice | Mapping[str, Field] | None
    repeated: bool = False
    keyed: bool = False


Message = Mapping[str, Field]

_STRING, _INT, _BOOL = Field(Scalar.STRING), Field(Scalar.INT), Field(Scalar.BOOL)
_STRINGS, _INTS = Field(Scalar.STRING, repeated=True), Field(Scalar.INT, repeated=True)
_STRING_MAP: Final = Field(Scalar.STRING, keyed=True)

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
_DATA_TYPE: Final = Field(Choice(("TYPE_INVALID", *DATA_TYPES)))
_RESHAPE: Final = Field({"shape": _INTS})

_INPUT: Final[Message] = {
    "name": _STRING,
    "data_type": _DATA_TYPE,
    "format": Field(Choice(("FORMAT_NONE", "FORMAT_NHWC", "FORMAT_NCHW"))),
    "dims": _INTS,
    "reshape": _RESHAPE,
    "is_shape_tensor": _BOOL,
    "allow_ragged_batch": _BOOL,
    "optional": _BOOL,
    "is_non_linear_format_io": _BOOL,
}
_OUTPUT: Final[Message] = {
    "name": _STRING,
    "data_type": _DATA_TYPE,
    "dims": _INTS,
    "reshape": _RESHAPE,
    "label_filename": _STRING,
    "is_shape_tensor": _BOOL,
    "is_non_linear_format_io": _BOOL,
}
_VERSION_POLICY: Final[Message] = {
    "latest": Field({"num_versions": _INT}),
    "all": Field({}),
    "specific": Field({"versions": _INTS}),
}
_QUEUE_POLICY: Final[Message] = {
    "timeout_action": Field(Choice(("REJECT", "DELAY"))),
    "default_timeout_microseconds": _INT,
    "allow_timeout_override": _BOOL,
    "max_queue_size": _INT,
}
_DYNAMIC_BATCHING: Final[Message] = {
    "preferred_batch_size": _INTS,
    "max_queue_delay_microseconds": _INT,
    "preserve_ordering": _BOOL,
    "priority_levels": _INT,
    "default_priority_level": _INT,
    "default_queue_policy": Field(_QUEUE_POLICY),
    "priority_queue_policy": Field(_QUEUE_POLICY, keyed=True),
}
_RATE_LIMITER: Final[Message] = {
    "resources": Field({"name": _STRING, "global": _BOOL, "count": _INT}, repeated=True),
    "priority": _INT,
}
_INSTANCE_GROUP: Final[Message] = {
    "name": _STRING,
    "kind": Field(Choice(("KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL"))),
    "count": _INT,
    "rate_limiter": Field(_RATE_LIMITER),
    "gpus": _INTS,
    "secondary_devices": Field(None, repeated=True),
    "profile": _STRINGS,
    "passive": _BOOL,
    "host_policy": _STRING,
}
_WARMUP_INPUT: Final[Message] = {
    "data_type": _DATA_TYPE,
    "dims": _INTS,
    "zero_data": _BOOL,
    "random_data": _BOOL,
    "input_data_file": _STRING,
}
_WARMUP: Final[Message] = {
    "name": _STRING,
    "batch_size": _INT,
    "inputs": Field(_WARMUP_INPUT, keyed=True),
    "count": _INT,
}

MODEL_CONFIG: Final[Message] = {
    "name": _STRING,
    "platform": _STRING,
    "backend": _STRING,
    "runtime": _STRING,
    "version_policy": Field(_VERSION_POLICY),
    "max_batch_size": _INT,
    "input": Field(_INPUT, repeated=True),
    "output": Field(_OUTPUT, repeated=True),
    "batch_input": Field(None, repeated=True),
    "batch_output": Field(None, repeated=True),
    "optimization": Field(None),
    "dynamic_batching": Field(_DYNAMIC_BATCHING),
    "sequence_batching": Field(None),
    "ensemble_scheduling": Field(None),
    "instance_group": Field(_INSTANCE_GROUP, repeated=True),
    "default_model_filename": _STRING,
    "cc_model_filenames": _STRING_MAP,
    "metric_tags": _STRING_MAP,
    "parameters": Field({"string_value": _STRING}, keyed=True),
    "model_warmup": Field(_WARMUP, repeated=True),
    "model_operations": Field({"op_library_filename": _STRINGS}),
    "model_transaction_policy": Field({"decoupled": _BOOL}),
    "model_repository_agents": Field(None),
    "response_cache": Field({"enable": _BOOL}),
    "model_metrics": Field(None),
}
