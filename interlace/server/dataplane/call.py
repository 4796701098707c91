"""An inference call as every transport hands it to the data plane, and what comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from interlace.core.errors import ServeError
from interlace.core.request import Reply
from interlace.core.tensor import Tensor

Parameter = bool | int | float | str


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output the caller names; ``classes`` > 0 asks for its top classes, not the tensor."""

    name: str
    classes: int = 0


class RequestTemplate:
    """Everything about a call but its bytes; calls that share a form are checked once.

    A transport that sees the same model, names, datatypes, shapes, sizes, outputs and parameters
    again hands in the same form; the data plane keeps what it found there.
    """

    __slots__ = ("checked",)

    def __init__(self) -> None:
        self.checked: object | None = None


@dataclass(slots=True)
class InferenceCall:
    """One inference call, decoded but not yet checked against the model.

    Input bytes already lie in a shared-memory arena. ``budget_ms`` is the caller's own deadline
    from now (gRPC deadline), ``None`` if it gave none; ``slo_ms`` and ``timeout`` stand in
    ``parameters``.
    """

    model: str
    version: str
    id: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[RequestedOutput, ...] = ()
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    budget_ms: float | None = None
    form: RequestTemplate | None = None


#: Called once per accepted call, when the device is done with the inputs.
OnReply = Callable[[Reply], None]
#: Called instead of ``OnReply`` when the call is refused before it reaches the engine.
OnError = Callable[[ServeError], None]
