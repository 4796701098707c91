"""A torch model opened in this process, before anything was done for what it will run on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, Protocol

import torch

from interlace.formats.trial import DeclaredSignature


class ModelCall(Protocol):
    """One execution: values by input name to whatever the model returns."""

    def __call__(self, values: Mapping[str, Any]) -> Any: ...


class Retarget(Protocol):
    """Readies it for a processor: called before it runs there, and not at all on the CPU it is for.

    What a file has written down is changed: the processor, and FP32 where ``dtype`` is given.
    """

    def __call__(self, device: torch.device, dtype: torch.dtype | None) -> None: ...


def _nothing_written_down(device: torch.device, dtype: torch.dtype | None) -> None:
    """Most formats need nothing."""


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
    retarget: Retarget = _nothing_written_down
    architecture: Callable[[], str] = str


def keyword_call(forward: Callable[..., Any]) -> ModelCall:
    """A call that hands every input to ``forward`` under its own name."""

    def call(values: Mapping[str, Any]) -> Any:
        return forward(**values)

    return call


def ordered_call(forward: Callable[..., Any], names: tuple[str, ...]) -> ModelCall:
    """A call that hands the inputs over in the order of ``names``; absent ones are ``None``."""

    def call(values: Mapping[str, Any]) -> Any:
        return forward(*[values.get(name) for name in names])

    return call


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
