"""A served model as Triton describes one."""

from __future__ import annotations

from collections.abc import Iterable

from interlace.core.tensor import TensorSpec
from interlace.server.model_table import ServedModel


def model_metadata(served: ServedModel, versions: list[str]) -> dict[str, object]:
    """Name, versions, platform, and tensors with the batch dimension in front as -1."""
    model = served.model
    batched = model.signature.batched
    return {
        "name": model.name,
        "versions": versions,
        "platform": served.config.get("platform", ""),
        "inputs": _tensors(model.signature.inputs, batched),
        "outputs": _tensors(model.signature.outputs, batched),
    }


def _tensors(specs: Iterable[TensorSpec], batched: bool) -> list[dict[str, object]]:
    return [
        {
            "name": spec.name,
            "datatype": spec.datatype,
            "shape": [-1, *spec.dims] if batched else list(spec.dims),
        }
        for spec in specs
    ]
