"""Python factories: ``model.py`` with ``create_model() -> nn.Module``."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from interlace.core.errors import RepositoryError
from interlace.core.model import Model
from interlace.core.tensor import BYTES, ITEM_BYTES, TensorSpec
from interlace.formats.architecture import OWN_CODE, architecture, own_code
from interlace.formats.convolutions import with_fast_convolutions
from interlace.formats.embedding_bounds import within_tables
from interlace.formats.opened import ModelCall, OpenedModel, keyword_call, ordered_call
from interlace.formats.runner import ModelRunner
from interlace.formats.samples import sample_values
from interlace.formats.torch_runner import open_on_cpu
from interlace.formats.torch_sharing import module_tensors
from interlace.formats.trial import DeclaredSignature

FILE: Final = "model.py"
_EXAMPLE: Final = 'INPUTS = {"image": ("FP32", (3, 224, 224))}'


def open_runner(model: Model, threads: int, weights_dir: str | None) -> ModelRunner:
    """As ``open_call``, on the CPU."""
    return open_on_cpu(open_call, model, threads, weights_dir)


def open_call(model: Model) -> OpenedModel:
    """Run ``model.py`` and open what its ``create_model`` returns.

    The file is the operator's own code and runs as such. It may declare ``INPUTS`` and
    ``OUTPUTS``, each a dict of name to (datatype, dims without the rows), and ``BATCHED = False``
    if its tensors have no rows. Convolutions are made faster where that changes results by
    rounding only; ``OPTIMISE = False`` keeps the module as it is. The first worker's weights are
    the ones all workers use, so random weights need no seed.

    Raises:
        RepositoryError: no ``create_model``, no module from it, or a malformed declaration.
    """
    source = Path(model.path, FILE)
    name = f"{OWN_CODE}{model.digest[:16]}"
    code = _execute(source, name)
    with torch.no_grad():
        module = _create(code, source)
    inputs = _declared(code, "INPUTS", source)
    spoken = DeclaredSignature(
        str(source),
        inputs,
        _declared(code, "OUTPUTS", source),
        None if inputs is None else bool(getattr(code, "BATCHED", True)),
        hint=f"{_EXAMPLE} in it, or input [ ... ] in config.pbtxt",
    )
    specs = inputs or model.signature.inputs
    if specs and getattr(code, "OPTIMISE", True):
        batched = model.signature.batched if spoken.batched is None else spoken.batched
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


def _execute(source: Path, name: str) -> types.ModuleType:
    # A package, so that model.py may import files beside it: ``from . import blocks``.
    module = types.ModuleType(name)
    module.__file__ = str(source)
    module.__path__ = [str(source.parent)]
    module.__package__ = name
    sys.modules[name] = module
    exec(compile(source.read_bytes(), str(source), "exec"), module.__dict__)
    return module


def _create(code: types.ModuleType, source: Path) -> torch.nn.Module:
    create = getattr(code, "create_model", None)
    if not callable(create):
        triton = hasattr(code, "TritonPythonModel")
        found = "a TritonPythonModel" if triton else "no function create_model"
        raise RepositoryError(str(source), found, "def create_model() -> torch.nn.Module")
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
