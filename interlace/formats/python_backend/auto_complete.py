"""The configuration that ``auto_complete_config`` of a Python backend model fills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from interlace.core.tensor import Signature, TensorSpec
from interlace.formats.arrays import NUMPY_TYPES

_TENSOR_KEYS: Final = ("name", "data_type", "dims", "optional")


class ModelConfig:
    """A ModelConfig as Triton hands it to ``auto_complete_config``."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config: dict[str, Any] = dict(config)

    def as_dict(self) -> dict[str, Any]:
        """The configuration as it is now."""
        return self._config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set the largest batch.

        Raises:
            ValueError: the configuration asks for a larger one.
        """
        written = self._config.get("max_batch_size", 0)
        if written > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {written}, but in auto-complete-config "
                f"function for model '{self._config.get('name')}' specifies max_batch_size "
                f"{max_batch_size}"
            )
        self._config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Enable dynamic batching, which every model with a batch size has here.

        Raises:
            ValueError: the configuration has another scheduler.
        """
        for other in ("sequence_batching", "ensemble_scheduling"):
            if other in self._config:
                raise ValueError(
                    f"configuration has '{other}', auto-complete-config sets 'dynamic_batching'"
                )
        self._config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, transaction_policy: Mapping[str, Any]) -> None:
        """Set how many responses a request has.

        Raises:
            ValueError: an unknown property, or a contradiction to the configuration.
        """
        if unknown := set(transaction_policy) - {"decoupled"}:
            raise ValueError(f"model transaction policy: property '{unknown.pop()}' is not known")
        written = self._config.setdefault("model_transaction_policy", {})
        decoupled = transaction_policy.get("decoupled", False)
        if written.setdefault("decoupled", decoupled) != decoupled:
            raise ValueError(f"configuration has decoupled {not decoupled}, not {decoupled}")

    def add_input(self, input: Mapping[str, Any]) -> None:
        """Add an input, or complete one that the configuration has.

        Raises:
            ValueError: an unknown or missing property, or a contradiction.
        """
        self._add("input", input)

    def add_output(self, output: Mapping[str, Any]) -> None:
        """Add an output, or complete one that the configuration has.

        Raises:
            ValueError: an unknown or missing property, or a contradiction.
        """
        self._add("output", output)

    def _add(self, kind: str, tensor: Mapping[str, Any]) -> None:
        missing = [key for key in _TENSOR_KEYS[:3] if key not in tensor]
        if missing or (unknown := set(tensor) - set(_TENSOR_KEYS)):
            what = f"no '{missing[0]}'" if missing else f"the unknown property '{unknown.pop()}'"
            raise ValueError(f"{kind} {dict(tensor)} in auto-complete-config has {what}")
        tensors = self._config.setdefault(kind, [])
        for known in tensors:
            if known["name"] != tensor["name"]:
                continue
            for key in _TENSOR_KEYS[1:]:
                if key in tensor and known.get(key, tensor[key]) != tensor[key]:
                    raise ValueError(
                        f"{kind} '{tensor['name']}': configuration has {key} {known[key]}, "
                        f"auto-complete-config has {tensor[key]}"
                    )
            known.update(tensor)
            return
        tensors.append(dict(tensor))

    @property
    def iterative(self) -> bool:
        """Whether the code of the model may reschedule its requests."""
        return bool(self._config.get("sequence_batching", {}).get("iterative_sequence"))

    def signature(self) -> Signature:
        """Inputs and outputs as the model has them.

        Raises:
            ValueError: a data type that is none.
        """
        most = self._config.get("max_batch_size", 0)
        inputs, outputs = _specs(self._config.get("input")), _specs(self._config.get("output"))
        decoupled = bool(self._config.get("model_transaction_policy", {}).get("decoupled"))
        return Signature(inputs, outputs, most > 0, most, decoupled=decoupled)


def _specs(tensors: Sequence[Mapping[str, Any]] | None) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(
            tensor["name"],
            _datatype(tensor["data_type"]),
            tuple(tensor.get("reshape", {}).get("shape", tensor["dims"])),
            bool(tensor.get("optional")),
        )
        for tensor in tensors or ()
    )


def _datatype(data_type: str) -> str:
    datatype = data_type.removeprefix("TYPE_").replace("STRING", "BYTES")
    if datatype not in NUMPY_TYPES:
        raise ValueError(f"data type '{data_type}': expected TYPE_FP32, TYPE_STRING or another")
    return datatype
