"""A torch model taken apart: its modules in the order they run, with what they were called with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook


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
