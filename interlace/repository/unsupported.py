"""What of ModelConfig is honoured, what is passed over, and what must be refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from interlace.repository.model_config import ModelConfig

#: Settings of Triton's scheduler that have no meaning here: the planner decides.
_PASSED_OVER: Final = {
    "instance_group": "the planner decides where and how often a model runs",
    "optimization": "formats are run with their own optimisations",
    "model_warmup": "profiling warms every model up",
    "response_cache": "replies are not cached",
    "cc_model_filenames": "there is one file a model",
    "metric_tags": "metrics carry model and version only",
    "model_metrics": "metrics have buckets of their own",
}
_REFUSED: Final = {
    "ensemble_scheduling": "an ensemble",
    "sequence_batching": "a stateful model",
    "batch_input": "ragged batching",
    "batch_output": "ragged batching",
    "model_repository_agents": "repository agents",
}
_TENSOR_REFUSED: Final = ("allow_ragged_batch", "is_shape_tensor", "is_non_linear_format_io")


def check_supported(config: ModelConfig) -> None:
    """Refuse what would change a model's meaning and is not done here.

    Raises:
        RepositoryError: the key, and that it is not supported.
    """
    values = config.values
    for key, what in _REFUSED.items():
        if values.get(key):
            raise config.error(key, what, "a model without: not supported")
    if values.get("model_transaction_policy", {}).get("decoupled"):
        raise config.error("model_transaction_policy.decoupled", "true", "false: not supported")
    if values.get("model_operations", {}).get("op_library_filename"):
        raise config.error(
            "model_operations", "libraries", "none: custom operations are not loaded"
        )
    for kind in ("input", "output"):
        for place, tensor in enumerate(values.get(kind, [])):
            _check_tensor(config, tensor, f"{kind}[{place}]")


def _check_tensor(config: ModelConfig, tensor: dict[str, Any], path: str) -> None:
    if not tensor.get("name"):
        raise config.error(path, "no name", 'name: "..."')
    for key in _TENSOR_REFUSED:
        if tensor.get(key):
            raise config.error(f"{path}.{key}", "true", "false: not supported")
    if "reshape" in tensor and tensor["reshape"].get("shape", []) != tensor.get("dims", []):
        raise config.error(f"{path}.reshape", "another shape", "no reshape: not supported")


def ignored_settings(config: ModelConfig) -> Iterator[str]:
    """One line for each setting that is read and has no effect."""
    for key, why in _PASSED_OVER.items():
        if config.values.get(key):
            yield f"{config.where(key)} has no effect: {why}"
    batching = config.values.get("dynamic_batching", {})
    for key in ("preferred_batch_size", "max_queue_delay_microseconds"):
        if batching.get(key):
            path = f"dynamic_batching.{key}"
            yield f"{config.where(path)} has no effect: batches follow from the SLO and the profile"
