"""A torch model tried out on sample inputs: what comes out, and does it write into its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from interlace.core.errors import RepositoryError
from interlace.core.model import Model
from interlace.core.tensor import Signature, TensorSpec
from interlace.device.formats.arrays import sample_array, sample_shape
from interlace.device.formats.torch_values import named_values, to_torch, value_datatype

#: Size of a free dimension for which nobody stated one.
FREE_DIM: Final = 64
_ROWS: Final = (1, 2)

Run = Callable[[Mapping[str, Any]], Any]
Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Spoken:
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
class Trial:
    """What trying a model out showed."""

    signature: Signature
    writes_inputs: bool


def try_out(run: Run, model: Model, spoken: Spoken) -> Trial:
    """Run a model on sample inputs, as often as its description leaves something open.

    Raises:
        RepositoryError: the inputs are unknown; or the outputs are, and the trial failed.
    """
    inputs = spoken.inputs or model.signature.inputs
    if not inputs:
        raise RepositoryError(spoken.source, "no description of the inputs", spoken.hint)
    batched = model.signature.batched if spoken.batched is None else spoken.batched
    asked = Signature(inputs, (), batched, spoken.max_batch)
    outputs = spoken.outputs or model.signature.outputs
    try:
        first, wrote = _execute(run, asked, model, 0)
        if not outputs:
            second, _ = _execute(run, asked, model, 1)
            outputs = _outputs(first, second, batched, spoken.source)
    except RepositoryError:
        raise
    except Exception as error:
        if not outputs:
            shapes = {spec.name: list(_shape(spec, asked, model, 0)) for spec in inputs}
            raise RepositoryError(
                spoken.source,
                f"a model that failed on sample inputs of shape {shapes} ({error})",
                "a model that runs; sizes of free dims can be given under [sample]",
            ) from error
        wrote = True  # not known: copying inputs is safe either way
    return Trial(Signature(inputs, outputs, batched, spoken.max_batch), wrote)


def _shape(spec: TensorSpec, signature: Signature, model: Model, attempt: int) -> tuple[int, ...]:
    dims = sample_shape(spec, tuple(model.sample.get(spec.name, ())), FREE_DIM)
    if attempt:  # other sizes, to see which output dims follow
        dims = tuple(
            2 * size if free < 0 else size for size, free in zip(dims, spec.dims, strict=True)
        )
    return (_ROWS[attempt], *dims) if signature.batched else dims


def _execute(run: Run, signature: Signature, model: Model, attempt: int) -> tuple[Values, bool]:
    values = {
        spec.name: to_torch(
            sample_array(spec, _shape(spec, signature, model, attempt)), spec.datatype
        )
        for spec in signature.inputs
    }
    tensors = [value for value in values.values() if isinstance(value, torch.Tensor)]
    # Version counters exist under no_grad, not under inference_mode.
    with torch.no_grad():
        before = [tensor._version for tensor in tensors]
        result = named_values(run(values))
        wrote = before != [tensor._version for tensor in tensors]
    return result, wrote


def _outputs(first: Values, second: Values, batched: bool, source: str) -> tuple[TensorSpec, ...]:
    specs = []
    for name, value in first.items():
        datatype = value_datatype(value)
        if datatype is None:
            raise RepositoryError(source, f"output '{name}' of type {value.dtype}", "a v2 datatype")
        shapes = tuple(value.shape), tuple(second[name].shape)
        if batched and tuple(shape[:1] for shape in shapes) != tuple((rows,) for rows in _ROWS):
            raise RepositoryError(
                source,
                f"output '{name}' of shape {list(shapes[0])} for {_ROWS[0]} rows and "
                f"{list(shapes[1])} for {_ROWS[1]}",
                "rows first in every output, or max_batch = 0 for a model that takes no batches",
            )
        dims = tuple(a if a == b else -1 for a, b in zip(*shapes, strict=True))
        specs.append(TensorSpec(name, datatype, dims[1:] if batched else dims))
    return tuple(specs)
