"""Indices of embeddings held within their tables, for processors that do not check them."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Final

import torch

from interlace.formats.opened import Retarget

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
