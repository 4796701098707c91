"""A model's modules in the order in which they run, and where their weights lie and come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from interlace.device.cuda.driver.api import Piece
from interlace.device.cuda.memory.mapped import GRANULE_BYTES
from interlace.device.cuda.models.weights import TensorPlacement
from interlace.shm.extents import rounded


class ModuleCall(NamedTuple):
    """One call of a module.

    ``tensors`` are the weights that belong to it alone. ``whole``: it has no parts that are steps
    of their own, so its time is its own, too.
    """

    name: str
    module: nn.Module
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    tensors: tuple[torch.Tensor, ...]
    whole: bool

    def run(self) -> None:
        self.module.forward(*self.arguments, **self.keywords)


def module_calls(run: Callable[[], object]) -> list[ModuleCall]:
    """What runs, in order, when ``run`` executes a model once.

    A module is a step if it has no submodules that run, or weights of its own beside theirs.
    Weights that several steps use belong to the first. Formats without modules inside, such as
    TorchScript, are one step.
    """
    ran = _modules(run)
    if not ran:
        return []
    root = next(iter(ran))
    names = {part: name for name, part in root.named_modules()}
    with ExitStack() as hooks:
        calls: list[tuple[nn.Module, tuple[Any, ...], dict[str, Any]]] = []

        def called(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            calls.append((module, args, kwargs))

        for module in ran:
            hooks.callback(module.register_forward_pre_hook(called, with_kwargs=True).remove)
        run()
    return list(_steps(calls, names, set(ran)))


def _modules(run: Callable[[], object]) -> dict[nn.Module, None]:
    found: dict[nn.Module, None] = {}

    def called(module: nn.Module, args: Any) -> None:
        found.setdefault(module)

    hook = register_module_forward_pre_hook(called)
    try:
        run()
    finally:
        hook.remove()
    return found


def _steps(
    calls: list[tuple[nn.Module, tuple[Any, ...], dict[str, Any]]],
    names: dict[nn.Module, str],
    ran: set[nn.Module],
) -> Iterator[ModuleCall]:
    known: set[int] = set()
    seen: dict[str, int] = {}
    for module, args, kwargs in calls:
        parts = [part for part in module.modules() if part is not module and part in ran]
        tensors = tuple(_new(module, whole=not parts, known=known))
        if parts and not tensors:
            continue
        name = names.get(module) or type(module).__name__.lower()
        seen[name] = seen.get(name, 0) + 1
        label = name if seen[name] == 1 else f"{name}#{seen[name]}"
        yield ModuleCall(label, module, args, kwargs, tensors, not parts)


def _new(module: nn.Module, whole: bool, known: set[int]) -> Iterator[torch.Tensor]:
    for tensor in (*module.parameters(recurse=whole), *module.buffers(recurse=whole)):
        if tensor.numel() and tensor.data_ptr() not in known:
            known.add(tensor.data_ptr())
            yield tensor


_ALIGN_BYTES: Final = 256  #: of a tensor
#: A copy costs 2 to 3 us beyond its bytes: a hundredth of what so many take. What the last group
#: brings is waited for with nothing left to hide it behind.
LEAST_BYTES: Final = 8 << 20
LAST_BYTES: Final = 1 << 20


class ColdLayer(NamedTuple):
    """A step of ``module_calls``; its weights are the bytes from ``begin`` on.

    A ``table`` is one that rows are looked up in: those alone are read, wherever it lies.
    """

    module: nn.Module
    begin: int
    nbytes: int
    table: bool


class ColdLayout(NamedTuple):
    """Where each tensor lies in the model's copy on the host: in order of first use, tables last.

    All but tables, ``window_bytes``, lies in a lane's window in the same order. ``groups`` are
    layers by index that come, and are waited for, together.
    """

    layers: Sequence[ColdLayer]
    places: Mapping[str, TensorPlacement]
    window_bytes: int
    nbytes: int
    groups: Sequence[range]


def cold_layout(tensors: Mapping[str, torch.Tensor], run: Callable[[], object]) -> ColdLayout:
    """The layout of a model that ``run`` executes on one row, with weights where ``tensors`` say.

    Tensors of no layer, and those that are no floats, are not in it: as indices, what happens to
    lie in a window could lead anywhere.

    Raises:
        ValueError: nothing in the model can be told apart.
    """
    calls = module_calls(run)
    if not calls:
        raise ValueError("its layers cannot be told apart: it has no modules that run")
    known: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.numel() and tensor.is_floating_point():
            known.setdefault(tensor.data_ptr(), []).append(name)
    tables = [is_table(call, calls) for call in calls]
    places: dict[str, TensorPlacement] = {}
    layers: dict[int, ColdLayer] = {}
    end = window_bytes = 0
    for index in sorted(range(len(calls)), key=tables.__getitem__):
        begin = end
        for tensor in calls[index].tensors:
            names = known.get(tensor.data_ptr(), [])
            for name in names:
                one = tensors[name]
                places[name] = TensorPlacement(end, tuple(one.shape), one.stride(), one.dtype)
            if names:
                end += -(-tensor.nbytes // _ALIGN_BYTES) * _ALIGN_BYTES
        if end > begin:  # as places are cut, so that a group is one copy
            end = begin + rounded(end - begin, GRANULE_BYTES)
        layers[index] = ColdLayer(calls[index].module, begin, end - begin, tables[index])
        window_bytes = window_bytes if tables[index] else end
    ordered = [layers[index] for index in range(len(calls))]
    groups = tuple(_groups([layer.nbytes for layer in ordered]))
    return ColdLayout(ordered, places, window_bytes, end, groups)


def is_table(call: ModuleCall, calls: Sequence[ModuleCall]) -> bool:
    """Whether it only looks rows up, in weights that nothing else reads."""
    module = call.module
    if type(module).forward is not nn.Embedding.forward or "forward" in vars(module):
        return False
    assert isinstance(module, nn.Embedding)
    at = module.weight.data_ptr()
    others = {one.module for one in calls} - {module}
    shared = any(at == own.data_ptr() for one in others for own in one.parameters(recurse=False))
    return bool(call.tensors) and not shared and module.max_norm is None


def _groups(sizes: Sequence[int]) -> Iterator[range]:
    """Ranges of indices over all layers; only the last two may be smaller than the least."""
    last = max((index for index, size in enumerate(sizes) if size), default=0)
    while last > 0 and sum(sizes[last - 1 :]) <= LAST_BYTES:
        last -= 1
    begin = 0
    for index in range(last):
        if sum(sizes[begin : index + 1]) >= LEAST_BYTES:
            yield range(begin, index + 1)
            begin = index + 1
    if begin < last:
        yield range(begin, last)
    yield range(last, len(sizes))


def joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Pieces that lie side by side at both ends as one."""
    found: list[Piece] = []
    for target, source, nbytes in pieces:
        if found:
            to, begin, size = found[-1]
            if (to + size, begin + size) == (target, source):
                found[-1] = to, begin, size + nbytes
                continue
        found.append((target, source, nbytes))
    return found
