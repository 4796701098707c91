"""A served model as Triton describes one: metadata and configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from interlace.core.model import Format, Model
from interlace.core.tensor import TensorSpec
from interlace.server.model_table import ServedModel

PLATFORMS: Final[Mapping[Format, tuple[str, str]]] = {
    Format.ONNX: ("onnxruntime_onnx", "onnxruntime"),
    Format.TORCHSCRIPT: ("pytorch_libtorch", "pytorch"),
    Format.EXPORTED: ("pytorch_exported", "pytorch"),
    Format.HUGGINGFACE: ("huggingface_transformers", "pytorch"),
    Format.FACTORY: ("pytorch_factory", "pytorch"),
    Format.PROFILE: ("simulated", "simulated"),
}


def model_metadata(served: ServedModel, versions: list[str]) -> dict[str, object]:
    """Name, versions, platform, and tensors with the batch dimension in front as -1."""
    model = served.model
    batched = model.signature.batched
    return {
        "name": model.name,
        "versions": versions,
        "platform": served.config.get("platform") or PLATFORMS[model.format][0],
        "inputs": _tensors(model.signature.inputs, batched),
        "outputs": _tensors(model.signature.outputs, batched),
    }


def model_config(served: ServedModel) -> dict[str, object]:
    """The JSON of Triton's ModelConfig: as deployed, or made from the signature."""
    return dict(served.config) or _made_config(served.model)


def _tensors(specs: Iterable[TensorSpec], batched: bool) -> list[dict[str, object]]:
    return [
        {
            "name": spec.name,
            "datatype": spec.datatype,
            "shape": [-1, *spec.dims] if batched else list(spec.dims),
        }
        for spec in specs
    ]


def _made_config(model: Model) -> dict[str, object]:
    platform, backend = PLATFORMS[model.format]
    signature = model.signature
    return {
        "name": model.name,
        "platform": platform,
        "backend": backend,
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": signature.max_batch if signature.batched else 0,
        "input": [{**_config_tensor(s), "optional": s.optional} for s in signature.inputs],
        "output": [_config_tensor(spec) for spec in signature.outputs],
        "instance_group": [],
        "optimization": {},
        "parameters": {"slo_ms": {"string_value": f"{model.terms.slo_ms:g}"}},
        "model_warmup": [],
    }


def _config_tensor(spec: TensorSpec) -> dict[str, object]:
    kind = "STRING" if spec.datatype == "BYTES" else spec.datatype
    return {"name": spec.name, "data_type": f"TYPE_{kind}", "dims": list(spec.dims)}
