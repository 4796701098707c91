"""A torch model opened in this process, and tried out on sample inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
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

#: One execution: values by input name to whatever the model returns.
ModelCall = Callable[[Mapping[str, Any]], Any]
#: Readies it for a processor: called before it runs there, and not at all on the CPU it is for.
#: What a file has written down is changed: the processor, and FP32 where a type is given.
Retarget = Callable[[torch.device, torch.dtype | None], None]
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

    def inputs_of(self, model: Model) -> tuple[tuple[TensorSpec, ...], bool]:
        """The inputs, and whether they have rows: by the file, else by the model's description."""
        batched = model.signature.batched if self.batched is None else self.batched
        return self.inputs or model.signature.inputs, batched


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What trying a model out showed."""

    signature: Signature
    writes_inputs: bool


def try_out(run: ModelCall, model: Model, spoken: DeclaredSignature) -> TrialResult:
    """Run a model on sample inputs: twice if its file does not describe its outputs, else once.

    A model that fails on them keeps the described outputs, if there are any; requests test them.

    Raises:
        RepositoryError: the inputs are unknown; the model fails on them and no outputs are
            described; or its outputs differ from the described ones.
    """
    inputs, batched = spoken.inputs_of(model)
    if not inputs:
        raise RepositoryError(spoken.source, "no description of the inputs", spoken.hint)
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


def _execute(run: ModelCall, values: ValuesByName) -> tuple[ValuesByName, bool]:
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


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model on the CPU.

    ``call`` executes it on values that lie where ``tensors`` lie, and makes none elsewhere.
    ``tensors`` are its weights and constants by name: giving one other ``data`` moves or converts
    it. Those in ``exact`` stay in FP32 when others are converted. ``defaults`` fill an optional
    input that a request leaves out. ``below`` bounds the indices in an input; ``longest`` is the
    largest last dim of an input. Beyond these the model reads memory that is not its own, which
    ends a process on a GPU. ``eager_because`` says why it cannot be captured as a graph, if that is
    known. ``architecture`` describes its present state without weights, as
    ``formats.architecture`` does; it is empty if unknown.
    """

    call: ModelCall
    tensors: Mapping[str, torch.Tensor]
    spoken: DeclaredSignature
    exact: frozenset[str] = frozenset()
    defaults: Mapping[str, int] = field(default_factory=dict)
    below: Mapping[str, int] = field(default_factory=dict)
    longest: Mapping[str, int] = field(default_factory=dict)
    eager_because: str = ""
    retarget: Retarget = lambda device, dtype: None
    architecture: Callable[[], str] = str


def keyword_call(forward: Callable[..., Any]) -> ModelCall:
    """A call that hands every input to ``forward`` under its own name."""
    return lambda values: forward(**values)


def ordered_call(forward: Callable[..., Any], names: tuple[str, ...]) -> ModelCall:
    """A call that hands the inputs over in the order of ``names``; absent ones are ``None``."""
    return lambda values: forward(*[values.get(name) for name in names])


_TABLES: Final = torch.nn.Embedding | torch.nn.EmbeddingBag


def within_tables(module: torch.nn.Module) -> Retarget:
    """From the first time it is sent somewhere, a module's embeddings look up no row that is not.

    Cores refuse such an index. A GPU stops at it, and with it all that it serves; so the nearest
    row is taken instead, wherever the index comes from: an input, or positions counted from it.
    Embeddings that are no ``nn.Embedding`` or ``nn.EmbeddingBag`` are not found.
    """
    tables = [part for part in module.modules() if isinstance(part, _TABLES)]
    held: set[torch.nn.Module] = set()

    def retarget(device: torch.device, dtype: torch.dtype | None) -> None:
        for table in tables:
            if table not in held:
                table.register_forward_pre_hook(_hold, with_kwargs=True)
                held.add(table)

    return retarget


def hold_lookups(part: torch.fx.GraphModule) -> None:
    """The same for the lookups of an exported program, before it is recompiled."""
    for node in list(part.graph.nodes):
        if node.target is not torch.ops.aten.embedding.default:
            continue
        table, indices = node.args[:2]
        if table.op != "get_attr":
            continue
        last = attrgetter(table.target)(part).shape[0] - 1
        with part.graph.inserting_before(node):
            held = part.graph.call_function(torch.ops.aten.clamp.default, (indices, 0, last))
        node.args = (table, held, *node.args[2:])


def _hold(
    table: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    assert isinstance(table, _TABLES)
    last = table.num_embeddings - 1
    if args:
        return (args[0].clamp(0, last), *args[1:]), kwargs
    return args, {**kwargs, "input": kwargs["input"].clamp(0, last)}
