"""What a module is but for its weights, as a number: models of equal ones take turns with one.

Nothing is guessed from files: the open module is walked. Whatever cannot be told apart for sure
(closures, objects of compiled libraries, tensors in containers) leaves a model to itself.
"""

from __future__ import annotations

import hashlib
import sys
import types
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from pathlib import Path, PurePath
from typing import Any, Final

import torch
from torch import fx, nn

#: How the modules of a model's own code are called.
OWN_CODE: Final = "interlace_model_"
_REGISTERED: Final = frozenset({"_parameters", "_buffers", "_modules"})
_PLAIN: Final = (
    type(None), bool, int, float, complex, bytes,
    torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format,
)  # fmt: skip
_NAMED: Final = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)


class _UntoldError(Exception):
    """There is something that cannot be told from another."""


def architecture(
    module: nn.Module, tensors: Mapping[str, torch.Tensor], folder: Path, *facts: object
) -> str:
    """Hex digits: equal where modules, and the ``facts`` beside them, differ in weights alone.

    In which ``folder`` a model lies is no difference. Empty if it cannot be said, also where the
    module has others than these ``tensors`` by now.
    """
    walk = _Walk(module, tensors, folder)
    try:
        told = [*map(walk.part, module.modules()), *map(walk.value, facts)]
    except _UntoldError:
        return ""
    return hashlib.sha256(repr(told).encode()).hexdigest()


def own_code(name: str, folder: Path) -> object:
    """A model's own code as a fact: its files, and what its modules hold beside their code."""
    texts = [path.read_bytes() for path in sorted(folder.rglob("*.py"))]
    held = [
        (key.removeprefix(name), [(k, v) for k, v in vars(code).items() if not k.startswith("__")])
        for key, code in sorted(sys.modules.items())
        if key == name or key.startswith(f"{name}.")
    ]
    return texts, held


class _Walk:
    """Says of values what they are in plain ones; of parts of the module, which."""

    def __init__(
        self, module: nn.Module, tensors: Mapping[str, torch.Tensor], folder: Path
    ) -> None:
        self._folder = str(folder)
        self._known = {id(tensor) for tensor in tensors.values()}
        self._places = {id(part): place for place, part in enumerate(module.modules())}
        self._within: set[int] = set()

    def part(self, part: nn.Module) -> object:
        """One module without those in it."""
        tensors = [*part._parameters.items(), *part._buffers.items()]
        state = [(name, one) for name, one in vars(part).items() if name not in _REGISTERED]
        tensors += [(name, one) for name, one in state if isinstance(one, torch.Tensor)]
        children = [(name, self.value(one)) for name, one in part._modules.items()]
        if any(one is not None and id(one) not in self._known for _, one in tensors):
            raise _UntoldError
        shape = [(name, _without_numbers(tensor)) for name, tensor in tensors]
        if isinstance(part, fx.GraphModule):  # the rest of it made this code
            return "graph", part.code, part.training, shape, children
        rest = {name: one for name, one in state if not isinstance(one, torch.Tensor)}
        return _name(type(part)), shape, children, self.value(rest)

    def value(self, value: object) -> object:
        """
        Raises:
            _UntoldError: it may differ from another where this does not.
        """
        if isinstance(value, str | PurePath):
            return type(value).__name__, str(value).replace(self._folder, ".")
        if type(value) in _PLAIN:
            return type(value).__name__, repr(value)
        if isinstance(value, Enum):
            return _name(type(value)), value.name
        if isinstance(value, nn.Module):
            if id(value) not in self._places:
                raise _UntoldError
            return "part", self._places[id(value)]
        if isinstance(value, _NAMED):
            if getattr(value, "__closure__", None):
                raise _UntoldError
            return _name(value)
        if id(value) in self._within:
            return "what it is in"
        self._within.add(id(value))
        told = _name(type(value)), [self.value(one) for one in _made_of(value)]
        self._within.discard(id(value))
        return told


def _made_of(value: object) -> Iterable[object]:
    """What an object that is not plain consists of, in order."""
    own = getattr(value, "__dict__", {})
    rest = [item for pair in own.items() for item in pair]
    match value:
        case types.MethodType():
            return value.__func__, value.__self__
        case partial():
            return [value.func, value.args, value.keywords, *rest]
        case Mapping():
            return [*(one for item in value.items() for one in item), *rest]
        case set() | frozenset():
            return [*sorted(value, key=repr), *rest]
        case list() | tuple():
            return [*value, *rest]
    if is_dataclass(value):
        return [getattr(value, field.name) for field in fields(value)]
    compiled = not type(value).__flags__ & _MADE_IN_PYTHON
    if compiled or isinstance(value, torch.Tensor) or not hasattr(value, "__dict__"):
        raise _UntoldError
    return rest


#: ``Py_TPFLAGS_HEAPTYPE`` of CPython: its class was made by a ``class`` statement.
_MADE_IN_PYTHON: Final = 1 << 9


def _without_numbers(tensor: torch.Tensor | None) -> object:
    if tensor is None:
        return None
    return str(tensor.dtype), tuple(tensor.shape), tensor.requires_grad, _name(type(tensor))


def _name(value: Any) -> str:
    """A class, function or module by name. A model's own code is named alike in all models."""
    module = str(getattr(value, "__module__", "") or "")
    name = str(getattr(value, "__qualname__", getattr(value, "__name__", "")))
    own = module.startswith(OWN_CODE) or name.startswith(OWN_CODE)
    return name.rpartition(".")[2] if own else f"{module}.{name}"
