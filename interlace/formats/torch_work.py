"""The work of a torch model: the kernels that pass while it runs once, on the meta device too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from interlace.core.work import Kind, LayerWork, ModelWork

_MATMULS: Final = ("mm", "addmm", "bmm", "baddbmm", "linear", "addmv", "mv", "dot")
#: What operators of memory alone are, by what their names hold; the first that fits.
_KINDS: Final[tuple[tuple[str, Kind], ...]] = (
    ("batch_norm", "scale"),
    ("norm", "norm"),
    ("softmax", "norm"),
    ("mean", "norm"),
    ("var", "norm"),
    ("pool", "pool"),
    ("upsample", "pool"),
    *(
        (name, "gather")
        for name in ("index", "embedding", "gather", "roll", "grid_sampler", "topk")
    ),
)
#: Operators that launch no kernel, or one that costs nothing.
_FREE: Final = ("detach", "empty", "new_empty", "scalar_tensor", "arange", "sym_size", "lift")


def count(run: Callable[[], Any], weights: Iterable[torch.Tensor]) -> ModelWork:
    """Count the kernels of ``run``, one execution of one row, on any device, meta too.

    An exception inside ends the count; it is named, and what ran before it is counted.
    """
    weights = list(weights)
    noted = _Counting(weights)
    hook = register_module_forward_pre_hook(noted.enter)
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    failed: tuple[str, ...] = ()
    try:
        with torch.no_grad(), _Attention(noted), noted:
            run()
    except Exception as error:
        text = f"{type(error).__name__}: {str(error)[:200]}"
        failed = (f"{noted.place or 'the model'} and what follows: {text}",)
    finally:
        hook.remove()
        torch.backends.mha.set_fastpath_enabled(fast)
    stored = sum(one.numel() for one in weights)
    halves = sum(one.numel() for one in weights if one.dtype in (torch.float16, torch.bfloat16))
    unread = (*dict.fromkeys(noted.unread), *failed)
    return ModelWork(tuple(noted.layers), unread, False, 2 * halves > stored, float(stored))


class _Counting(TorchDispatchMode):  # type: ignore[misc]
    """Notes every kernel that passes."""

    def __init__(self, weights: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._fixed = {_storage(one) for one in weights}
        self._alive: list[torch.Tensor] = []  # an id is of a storage as long as that lives
        self.layers: list[LayerWork] = []
        self.unread: list[str] = []
        self.place = ""  #: the class of the module that was entered last

    def enter(self, module: nn.Module, _: Any) -> None:
        self.place = type(module).__name__

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::").strip("_")
        if func.is_view or name.startswith(_FREE):
            return out
        ins = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        made = [one for one in tree_leaves(out) if isinstance(one, torch.Tensor)]
        if not made or not ins:
            return out
        fixed = [one for one in ins if _storage(one) in self._fixed]
        if len(fixed) == len(ins):  # of weights alone: once a batch
            self._fixed |= {_storage(one) for one in made}
            self._alive += made
            moved = float(sum(one.numel() for one in (*ins, *made)))
            self.layers.append(LayerWork("pass", 0.0, moved, 0.0, 0.0, 0.0, 1.0, 1.0))
            return out
        if name.startswith("scaled_dot_product"):
            self.add(_attended(args[0], args[1], args[2], made[0]))
            return out
        if name == "mkldnn_rnn_layer":  # of an LSTM on the CPU
            self.layers += _steps(args[0], args[1], args[2])
            return out
        weights = float(sum(one.numel() for one in fixed))
        read = float(sum(one.numel() for one in ins)) - weights
        flops = 0.0
        if func.overloadpacket in flop_registry:
            flops = float(flop_registry[func.overloadpacket](*args, **(kwargs or {}), out_val=out))
        elif func.namespace != "aten":
            self.unread.append(f"{self.place or 'the model'}: {func}")
        kind, m, n, k = _extent(name, args, made[0])
        if kind == "gather":  # of a table only what is looked up is read
            read, weights = float(made[0].numel()), 0.0
        self.add(LayerWork(kind, flops, weights, read, float(made[0].numel()), m, n, k))
        return out

    def add(self, one: LayerWork) -> None:
        self.layers.append(one)


def _storage(one: torch.Tensor) -> int:
    return int(one.untyped_storage()._cdata)


def _extent(name: str, args: Any, out: torch.Tensor) -> tuple[Kind, float, float, float]:
    """The kind of kernel, and the extents of its product."""
    values = float(out.numel())
    if "attention" in name:
        return "attention", values / out.shape[-1], float(out.shape[-1]), float(out.shape[-1])
    if "convolution" in name:
        weight, groups = args[1], int(args[8])
        transposed = bool(args[6])
        channels = out.shape[1]
        k = float(weight.numel() // weight.shape[0]) if not transposed else float(weight.shape[0])
        if groups == 1:
            return "conv", values / channels, float(channels), k
        kind: Kind = "depthwise" if weight.shape[1] == 1 else "grouped"
        return kind, values / channels * groups, channels / groups, k
    if name in _MATMULS:
        inner = args[1] if name in ("addmm", "baddbmm", "addmv") else args[0]
        return "matmul", values / out.shape[-1], float(out.shape[-1]), float(inner.shape[-1])
    return next((kind for part, kind in _KINDS if part in name), "pass"), values, 1.0, 1.0


class _Attention(TorchFunctionMode):  # type: ignore[misc]
    """Takes scaled dot-product attention as one kernel, as a GPU runs it."""

    def __init__(self, noted: _Counting) -> None:
        super().__init__()
        self._noted = noted

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not nn.functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        query, key, value = (*args, *(kwargs[n] for n in ("query", "key", "value") if n in kwargs))[
            :3
        ]
        out = query.new_empty((*query.shape[:-1], value.shape[-1]))
        self._noted.add(_attended(query, key, value, out))
        return out


def _attended(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor
) -> LayerWork:
    """Scaled dot-product attention as one kernel."""
    width, wide, rows = query.shape[-1], value.shape[-1], prod(query.shape[:-1])
    read = float(query.numel() + key.numel() + value.numel())
    flops = 2.0 * rows * key.shape[-2] * (width + wide)
    written = float(out.numel())
    return LayerWork("attention", flops, 0.0, read, written, float(rows), float(wide), float(width))


def _steps(
    values: torch.Tensor, input_weight: torch.Tensor, hidden_weight: torch.Tensor
) -> list[LayerWork]:
    """A recurrent layer, (steps, rows, features): one product for each step in time."""
    n, k = float(input_weight.shape[0]), float(input_weight.shape[1] + hidden_weight.shape[1])
    rows = float(values.shape[1])
    first = LayerWork("matmul", 2 * rows * n * k, n * k, rows * k, rows * n, rows, n, k)
    again = LayerWork("matmul", 2 * rows * n * k, 0.0, rows * k, rows * n, rows, n, k)
    return [first, *[again] * (values.shape[0] - 1)]
