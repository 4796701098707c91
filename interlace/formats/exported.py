"""Programs made by ``torch.export``: ``model.pt2``."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from interlace.core.errors import RepositoryError
from interlace.core.model import Model
from interlace.core.tensor import TensorSpec
from interlace.formats.opened import (
    DeclaredSignature,
    ModelCall,
    OpenedModel,
    Retarget,
    hold_lookups,
)
from interlace.formats.torch_sharing import module_tensors
from interlace.formats.torch_values import UNNAMED, datatype_of, named_values
from interlace.formats.torchscript import check_unpacked


def open_call(model: Model) -> OpenedModel:
    """Open an exported program; inputs, free dims and outputs are the program's own.

    The archive is code: torch evaluates expressions in it (``core.trust``).

    Raises:
        RepositoryError: no archive, one that unpacks to too much, or inputs that are not tensors.
    """
    source = model.source
    check_unpacked(source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the exporting torch's version
        program = torch.export.load(source)
    module = program.module()
    spoken = _describe(program, str(source))
    assert spoken.inputs is not None
    names = tuple(spec.name for spec in spoken.inputs)
    call = _call(module, program, names)
    return OpenedModel(call, module_tensors(module), spoken, retarget=_rewriting(module))


def _call(module: Any, program: Any, names: tuple[str, ...]) -> ModelCall:
    in_spec = program.call_spec.in_spec

    def call(values: Mapping[str, Any]) -> Any:
        leaves = [values[name] for name in names]
        args, kwargs = torch.utils._pytree.tree_unflatten(leaves, in_spec)
        return module(*args, **kwargs)

    return call


def _rewriting(module: Any) -> Retarget:
    # The program names the processor it was exported on, and types of its intermediate tensors.
    written: list[tuple[Any, Any, Any]] = []

    def retarget(device: torch.device, dtype: torch.dtype | None) -> None:
        if not written:
            for part in _graphs(module):
                hold_lookups(part)
            written.extend((node, node.args, node.kwargs) for node in _nodes(module))

        def replaced(value: Any) -> Any:
            if isinstance(value, torch.device):
                return device
            return dtype if dtype is not None and value is torch.float32 else value

        for node, args, kwargs in written:
            node.args = torch.fx.node.map_aggregate(args, replaced)
            node.kwargs = torch.fx.node.map_aggregate(kwargs, replaced)
        for part in _graphs(module):
            part.recompile()

    return retarget


def _graphs(module: Any) -> Iterator[Any]:
    return (part for part in module.modules() if isinstance(part, torch.fx.GraphModule))


def _nodes(module: Any) -> Iterator[Any]:
    return (node for part in _graphs(module) for node in part.graph.nodes)


def _describe(program: Any, source: str) -> DeclaredSignature:
    nodes = {node.name: node for node in program.graph.nodes}
    user_inputs = [str(name) for name in program.graph_signature.user_inputs]
    inputs = [_spec(name, nodes[name].meta["val"], source) for name in user_inputs]
    values = [nodes[name].meta["val"] for name in program.graph_signature.user_outputs]
    names = _output_names(program.call_spec.out_spec, len(values))
    outputs = [_spec(name, value, source) for name, value in zip(names, values, strict=True)]
    batched, max_batch = _batching(program, inputs, outputs)
    cut = 1 if batched else 0
    return DeclaredSignature(
        source,
        tuple(TensorSpec(s.name, s.datatype, s.dims[cut:]) for s in inputs),
        tuple(TensorSpec(s.name, s.datatype, s.dims[cut:]) for s in outputs),
        batched,
        max_batch,
    )


def _spec(name: str, value: Any, source: str) -> TensorSpec:
    datatype = datatype_of(value.dtype) if isinstance(value, torch.Tensor) else None
    if datatype is None:
        raise RepositoryError(source, f"'{name}' is {type(value).__name__}", "tensors only")
    dims = tuple(size if isinstance(size, int) else -1 for size in value.shape)
    return TensorSpec(name, datatype, dims)


def _output_names(out_spec: Any, count: int) -> list[str]:
    # The same names that a result of this structure gets when it is run.
    result = torch.utils._pytree.tree_unflatten(list(range(count)), out_spec)
    by_leaf = {leaf: name for name, leaf in named_values(result).items()}
    return [by_leaf.get(leaf, f"{UNNAMED}{leaf}") for leaf in range(count)]


def _batching(
    program: Any, inputs: list[TensorSpec], outputs: list[TensorSpec]
) -> tuple[bool, int]:
    if not all(spec.dims[:1] == (-1,) for spec in (*inputs, *outputs)):
        return False, 0
    first = program.graph_signature.user_inputs[0]
    node = next(node for node in program.graph.nodes if node.name == first)
    limits: Any = program.range_constraints.get(node.meta["val"].shape[0].node.expr)
    # torch writes an unlimited dim as infinity or as a number near 2**63.
    if limits is None or bool(limits.upper >= 1 << 31):  # there are several infinities
        return True, 0
    return True, int(limits.upper)
