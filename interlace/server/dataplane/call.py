"""An inference call as every transport hands it to the data plane, and what is kept of its like."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

from interlace.core.errors import ServeError
from interlace.core.request import Reply
from interlace.core.tensor import Tensor
from interlace.server.model_table import ServedModel

Parameter = bool | int | float | str


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output the caller names; ``classes`` > 0 asks for its top classes, not the tensor."""

    name: str
    classes: int = 0


@dataclass(slots=True)
class CheckedCall:
    """What everything about a call but its bytes comes to, for one deployment.

    ``order`` puts the call's inputs into the signature's order; ``inspect`` are the positions, in
    that order, whose contents must be looked at in every call. ``refusal`` is the last one of such
    a request: it would be given again to one that arrives before ``until_ms``, as long as
    ``changes`` is that of the runtime.
    """

    served: ServedModel
    key: str
    rows: int
    shape: Hashable
    priority: int
    slo_ms: float
    outputs: tuple[str, ...]
    order: tuple[int, ...]
    inspect: tuple[int, ...]
    refusal: ServeError | None = None
    until_ms: float = float("-inf")
    changes: int = 0


class RequestTemplate:
    """Everything about a call but its bytes: calls that share a template are checked once.

    A transport that sees the same model, names, datatypes, shapes, sizes, outputs and parameters
    again hands in the same template; the data plane keeps in ``checked`` what it found.
    """

    __slots__ = ("checked",)

    def __init__(self) -> None:
        self.checked: CheckedCall | None = None


@dataclass(slots=True)
class InferenceCall:
    """One inference call, decoded but not yet checked against the model.

    Input bytes already lie in a shared-memory arena. ``budget_ms`` is the caller's own deadline
    from now (gRPC deadline), ``None`` if it gave none; ``slo_ms`` and ``timeout`` stand in
    ``parameters``. ``elapsed_ms`` is how long it has been under way already, at a router.
    """

    model: str
    version: str
    id: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[RequestedOutput, ...] = ()
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    budget_ms: float | None = None
    template: RequestTemplate | None = None
    elapsed_ms: float = 0.0


#: Called once per accepted call, when the device is done with the inputs.
OnReply = Callable[[Reply], None]
#: Called instead of ``OnReply`` when the call is refused before it reaches the engine.
OnError = Callable[[ServeError], None]
