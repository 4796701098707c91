"""Try out a torch model on sample inputs: its outputs, and whether it writes into its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from interlace.core.errors import RepositoryError
from interlace.core.model import Model
from interlace.core.tensor import Signature, TensorSpec
from interlace.formats.torch_values import (
    ROWS,
    named_values,
    sample_shapes,
    sample_values,
    value_datatype,
)

RunModel = Callable[[Mapping[str, Any]], Any]
ValuesByName = dict[str, Any]
#: What TorchScript says where no values will do: inputs are of other types than it takes.
_OTHER_SIGNATURE: Final = "Expected a value of type"


@dataclass(frozen=True, slots=True)
class DeclaredSignature:
    """What the model's own file says; ``None`` where it is silent.

    ``source`` names the file, ``hint`` how to say what is missing.
    """

    source: str
    inputs: tuple[TensorSpec, ...] | None = None
    outputs: tuple[TensorSpec, ...] | None = None
    batched: bool | None = None
    max_batch: int = 0
    hint: str = "inputs declared in config.pbtxt: input [ { name data_type dims } ]"


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What trying a model out showed."""

    signature: Signature
    writes_inputs: bool


def try_out(run: RunModel, model: Model, spoken: DeclaredSignature) -> TrialResult:
    """Run a model on sample inputs: twice if its file does not describe its outputs, else once.

    A model that fails on them keeps the described outputs, if there are any; requests test them.

    Raises:
        RepositoryError: the inputs are unknown; the model fails on them and no outputs are
            described; or its outputs differ from the described ones.
    """
    inputs = spoken.inputs or model.signature.inputs
    if not inputs:
        raise RepositoryError(spoken.source, "no description of the inputs", spoken.hint)
    batched = model.signature.batched if spoken.batched is None else spoken.batched
    try:
        first, wrote = _execute(run, sample_values(inputs, model, batched, 0))
        second = first
        if spoken.outputs is None:
            second, _ = _execute(run, sample_values(inputs, model, batched, 1))
    except Exception as error:
        described = spoken.outputs or model.signature.outputs
        if not described or _OTHER_SIGNATURE in str(error):
            raise _failed(error, spoken, sample_shapes(inputs, model, batched, 0)) from error
        first, wrote = {}, True
    own = tuple(spec.own for spec in inputs)
    outputs = spoken.outputs
    if outputs is None and first:
        outputs = _as_declared(_learn(first, second, batched, spoken.source), model, spoken)
    elif outputs is None:
        outputs = tuple(spec.own for spec in model.signature.outputs)
    return TrialResult(Signature(own, outputs, batched, spoken.max_batch), wrote)


def _failed(
    error: Exception, spoken: DeclaredSignature, shapes: Mapping[str, tuple[int, ...]]
) -> RepositoryError:
    lines = str(error).strip().splitlines() or [""]
    said = lines[0] if _OTHER_SIGNATURE in lines[0] else lines[-1]
    return RepositoryError(
        spoken.source,
        f"a model that failed on sample inputs of shape {shapes} ({said})",
        "what it takes: in interlace.toml, [sample] with sizes (NAME = [...]) or values "
        "(NAME = { value = ... } or { file = ... }); or output [ { name data_type dims } ] in "
        "config.pbtxt, and it is tried by requests",
    )


def _execute(run: RunModel, values: ValuesByName) -> tuple[ValuesByName, bool]:
    tensors = [value for value in values.values() if isinstance(value, torch.Tensor)]
    # Version counters exist under no_grad, not under inference_mode.
    with torch.no_grad():
        before = [tensor._version for tensor in tensors]
        result = named_values(run(values))
        wrote = before != [tensor._version for tensor in tensors]
    return result, wrote


def _learn(
    first: ValuesByName, second: ValuesByName, batched: bool, source: str
) -> tuple[TensorSpec, ...]:
    specs = []
    for name, value in first.items():
        datatype = value_datatype(value)
        if datatype is None:
            raise RepositoryError(source, f"output '{name}' of type {value.dtype}", "a v2 datatype")
        shapes = tuple(value.shape), tuple(second[name].shape)
        if batched and tuple(shape[:1] for shape in shapes) != tuple((rows,) for rows in ROWS):
            raise RepositoryError(
                source,
                f"output '{name}' of shape {list(shapes[0])} for {ROWS[0]} row and "
                f"{list(shapes[1])} for {ROWS[1]}",
                "rows first in every output, or max_batch = 0 for a model that takes no batches",
            )
        dims = tuple(a if a == b else -1 for a, b in zip(*shapes, strict=True))
        specs.append(TensorSpec(name, datatype, dims[1:] if batched else dims))
    return tuple(specs)


def _as_declared(
    learnt: tuple[TensorSpec, ...], model: Model, spoken: DeclaredSignature
) -> tuple[TensorSpec, ...]:
    """The outputs under the names they are described by, where order is all that relates them.

    A dim that is described as free is: two runs of one size do not show what values may do.
    """
    declared = {spec.name: spec.own.dims for spec in model.signature.outputs}
    found = [spec.name for spec in learnt]
    if not declared.keys() <= set(found):
        if len(declared) != len(found):
            expected = f"{list(declared)}"
            raise RepositoryError(spoken.source, f"{len(found)} outputs: {found}", expected)
        found = list(declared)
    return tuple(
        TensorSpec(name, spec.datatype, _freed(spec.dims, declared.get(name, ())))
        for name, spec in zip(found, learnt, strict=True)
    )


def _freed(found: tuple[int, ...], declared: tuple[int, ...]) -> tuple[int, ...]:
    if len(found) != len(declared):
        return found
    return tuple(-1 if free < 0 else size for size, free in zip(found, declared, strict=True))
