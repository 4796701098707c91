"""Which operator of a torch model reads which of its weights first: the order of execution.

Every torch format ends in the same operators, whether modules, exported programs or TorchScript
called them, so one watcher serves all. It costs about 10 us an operator, and is on no warm path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from interlace.formats.extents_file import WeightUse


class WeightWatcher(TorchDispatchMode):  # type: ignore[misc]
    """While it is entered, ``on_use`` is called before each operator that reads new weights."""

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], on_use: Callable[[WeightUse], None]
    ) -> None:
        super().__init__()
        self._on_use = on_use
        self._waiting: dict[int, list[str]] = {}
        for name, tensor in tensors.items():
            self._waiting.setdefault(_storage(tensor), []).append(name)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if self._waiting:
            named = {} if kwargs is None else kwargs
            read = dict.fromkeys(_storage(one) for one in _tensors((args, named)))
            found = [name for at in read for name in self._waiting.pop(at, ())]
            if found:
                self._on_use(WeightUse(func.__name__.partition(".")[0], tuple(found)))
        return func(*args, **(kwargs or {}))


def _storage(tensor: torch.Tensor) -> int:
    address: int = tensor.untyped_storage().data_ptr()
    return address


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple | dict):
            yield from _tensors(value)
