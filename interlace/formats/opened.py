"""A torch model opened in this process, before anything was done for what it will run on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

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
    input that a request leaves out. Indices in an input are below its entry of ``below``, and its
    last dim is at most its entry of ``longest``: beyond, the model reads memory that is not its
    own, which ends a process on a GPU. ``eager_because`` says why it cannot be captured as a graph,
    if that is known. ``architecture`` says what it is now but for its weights, as
    ``formats.architecture`` has it; empty if it cannot be told.
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
