"""Python factories: ``model.py`` with ``create_model() -> nn.Module``."""

from __future__ import annotations

import copy
import inspect
import types
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from interlace.core.errors import RepositoryError
from interlace.core.model import Model
from interlace.core.tensor import BYTES, ITEM_BYTES, TensorSpec
from interlace.formats.architecture import OWN_CODE, architecture, own_code
from interlace.formats.model_file import execute_file
from interlace.formats.opened import (
    DeclaredSignature,
    ModelCall,
    OpenedModel,
    keyword_call,
    ordered_call,
    within_tables,
)
from interlace.formats.torch_sharing import module_tensors
from interlace.formats.torch_values import named_values, sample_values

#: Largest difference accepted, as a part of the largest value: folding rounds differently.
_TOLERANCE: Final = 1e-4

Try = Callable[[nn.Module], Any]


def with_fast_convolutions(module: nn.Module, try_on_sample: Try) -> nn.Module:
    """A faster module in place of ``module``, or ``module`` itself.

    ``try_on_sample`` runs a module on the sample inputs, made anew each time. The faster one is
    taken only if it runs there and gives the same results up to rounding.
    """
    if not any(isinstance(part, nn.Conv2d) for part in module.modules()):
        return module
    try:
        with torch.no_grad():
            wanted = named_values(try_on_sample(module))
            candidate = _channels_last(_folded(copy.deepcopy(module)))
            found = named_values(try_on_sample(candidate))
    except Exception:  # code that cannot be traced, or relies on the layout of its tensors
        return module
    return candidate if _close(wanted, found) else module


def _folded(module: nn.Module) -> nn.Module:
    if not any(isinstance(part, nn.BatchNorm2d) for part in module.modules()):
        return module  # tracing writes to every class of modules, in pages that workers share
    try:
        traced = fx.symbolic_trace(module)
    except Exception:  # control flow that depends on the input
        return module
    parts = dict(traced.named_modules())
    uses = Counter(node.target for node in traced.graph.nodes if node.op == "call_module")
    for node in list(traced.graph.nodes):
        source = _foldable(node, parts, uses)
        if source is not None:
            fused = fuse_conv_bn_eval(parts[str(source.target)], parts[str(node.target)])
            traced.set_submodule(str(source.target), fused)
            node.replace_all_uses_with(source)
            traced.graph.erase_node(node)
    traced.graph.lint()
    traced.recompile()
    traced.delete_all_unused_submodules()
    return traced.eval()


def _batched(code: types.ModuleType, model: Model) -> bool:
    """As the file says; else as its settings do; else it is."""
    refused = not model.signature.batched and model.signature.max_batch == 1
    return bool(getattr(code, "BATCHED", not refused))


def _foldable(node: fx.Node, parts: Mapping[str, nn.Module], uses: Counter[Any]) -> fx.Node | None:
    """The convolution that a batch-norm node can be folded into, if it is one that can."""
    if node.op != "call_module" or not isinstance(parts[str(node.target)], nn.BatchNorm2d):
        return None
    source = node.args[0]
    if not isinstance(source, fx.Node) or source.op != "call_module":
        return None
    alone = len(source.users) == 1 and uses[source.target] == 1 and uses[node.target] == 1
    known = isinstance(parts[str(source.target)], nn.Conv2d)
    return source if alone and known and parts[str(node.target)].running_mean is not None else None


def _channels_last(module: nn.Module) -> nn.Module:
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            part.weight.data = part.weight.data.contiguous(memory_format=torch.channels_last)
    return module


def _close(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    if wanted.keys() != found.keys():
        return False
    for name, value in wanted.items():
        if not isinstance(value, torch.Tensor) or value.shape != found[name].shape:
            return False
        if value.dtype != found[name].dtype or not torch.isfinite(value).all():
            return False
        scale = value.abs().amax().item() if value.numel() else 0.0
        if not torch.allclose(value, found[name], rtol=0.0, atol=_TOLERANCE * scale):
            return False
    return True


_WANTED: Final = "def create_model() -> torch.nn.Module, or class TritonPythonModel"
_EXAMPLE: Final = 'INPUTS = {"image": ("FP32", (3, 224, 224))}'


def open_call(model: Model) -> OpenedModel:
    """Run ``model.py`` and open what its ``create_model`` returns.

    The file is the operator's own code and runs as such. It may declare ``INPUTS`` and
    ``OUTPUTS``, each a dict of name to (datatype, dims without the rows), and ``BATCHED = False``
    if its tensors have no rows, as ``max_batch = 0`` says, too. Convolutions are made faster where
    that changes results by rounding only; ``OPTIMISE = False`` keeps the module as it is. The first
    worker's weights are the ones all workers use, so random weights need no seed.

    Raises:
        RepositoryError: no ``create_model``, no module from it, or a malformed declaration.
    """
    source = model.source
    name = f"{OWN_CODE}{model.digest[:16]}"
    code = execute_file(source, name)
    with torch.no_grad():
        module = _create(code, source)
    inputs = _declared(code, "INPUTS", source)
    spoken = DeclaredSignature(
        str(source),
        inputs,
        _declared(code, "OUTPUTS", source),
        None if inputs is None else _batched(code, model),
        hint=f"{_EXAMPLE} in it, or input [ ... ] in config.pbtxt",
    )
    specs, batched = spoken.inputs_of(model)
    if specs and getattr(code, "OPTIMISE", True):
        module = with_fast_convolutions(
            module, lambda part: _call(part, specs)(sample_values(specs, model, batched, 1))
        )
    tensors = module_tensors(module)
    return OpenedModel(
        _call(module, specs),
        tensors,
        spoken,
        retarget=within_tables(module),
        architecture=lambda: architecture(
            module, tensors, source.parent, specs, own_code(name, source.parent)
        ),
    )


def _create(code: types.ModuleType, source: Path) -> torch.nn.Module:
    create = getattr(code, "create_model", None)
    if not callable(create):
        raise RepositoryError(str(source), "no create_model()", _WANTED)
    module = create()
    if not isinstance(module, torch.nn.Module):
        raise RepositoryError(
            f"{source}: create_model()", f"{type(module).__name__}", "a torch.nn.Module"
        )
    return module.eval()


def _call(module: torch.nn.Module, inputs: tuple[TensorSpec, ...]) -> ModelCall:
    names = tuple(spec.name for spec in inputs)
    parameters = inspect.signature(module.forward).parameters
    return keyword_call(module) if set(names) <= set(parameters) else ordered_call(module, names)


def _declared(code: types.ModuleType, key: str, source: Path) -> tuple[TensorSpec, ...] | None:
    declared = getattr(code, key, None)
    if declared is None:
        return None
    if not isinstance(declared, Mapping) or not declared:
        raise RepositoryError(f"{source}: {key}", f"{declared!r}", _EXAMPLE)
    return tuple(_spec(name, value, f"{source}: {key}") for name, value in declared.items())


def _spec(name: Any, value: Any, where: str) -> TensorSpec:
    match value:
        case (str(datatype), list() | tuple() as dims) if datatype in (*ITEM_BYTES, BYTES):
            sizes = tuple(dims)
            if isinstance(name, str) and all(isinstance(d, int) and d >= -1 for d in sizes):
                return TensorSpec(name, datatype, sizes)
    raise RepositoryError(
        where, f"{name!r}: {value!r}", f"{_EXAMPLE}; datatypes: {', '.join((*ITEM_BYTES, BYTES))}"
    )
