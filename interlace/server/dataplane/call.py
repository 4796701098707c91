"""An inference call as every transport hands it to the data plane, and what is kept of its like."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from interlace.core.errors import Reason, ServeError
from interlace.core.model import Model
from interlace.core.sequence import SequenceStep
from interlace.core.tensor import BYTES, Tensor, frame
from interlace.formats.arrays import NUMPY_TYPES
from interlace.server.dataplane.tensor_places import InputSource, OutputTarget, Parameter
from interlace.server.model_table import ServedModel
from interlace.server.spans import TraceFields


def classified(
    model: Model, tensor: Tensor, view: memoryview, classes: int
) -> tuple[tuple[int, ...], bytes]:
    """An output as its top classes: shape and bytes of a BYTES tensor, as ``top_classes`` says.

    Raises:
        ServeError: the datatype cannot be ranked.
    """
    labels = model.labels.get(tensor.name, ())
    shape, elements = top_classes(tensor, view, classes, model.signature.batched, labels)
    return shape, frame(elements)


def top_classes(
    tensor: Tensor, view: memoryview, classes: int, batched: bool, labels: Sequence[str] = ()
) -> tuple[tuple[int, ...], list[bytes]]:
    """Shape and BYTES elements of the ``classes`` highest values of each row.

    ``view`` holds the tensor's bytes. A row is everything after the batch dimension, or the whole
    tensor of a model without one. Fewer values than asked for are all given. Equal values come in
    order of their index.

    Raises:
        ServeError: the datatype cannot be ranked.
    """
    rows = tensor.shape[0] if batched and tensor.shape else 1
    values = _numbers(tensor, view).reshape(rows, -1)
    count = min(classes, values.shape[1])
    best = np.argsort(-values.astype(np.float64), axis=1, kind="stable")[:, :count]
    elements = [
        _element(values[row, index], int(index), labels)
        for row, indices in enumerate(best)
        for index in indices
    ]
    return ((rows, count) if batched else (count,)), elements


def _numbers(tensor: Tensor, view: memoryview) -> np.ndarray[Any, np.dtype[Any]]:
    if tensor.datatype == "BF16":  # the upper half of an FP32
        return (np.frombuffer(view, "<u2").astype("<u4") << 16).view("<f4")
    if tensor.datatype not in ("BOOL", BYTES):
        return np.frombuffer(view, NUMPY_TYPES[tensor.datatype])
    kinds = "numbers, not text" if tensor.datatype == BYTES else "numbers"
    raise ServeError(
        Reason.BAD_INPUT,
        f"output '{tensor.name}' is {tensor.datatype}; classification ranks {kinds}",
    )


def _element(value: Any, index: int, labels: Sequence[str]) -> bytes:
    number = f"{value:f}" if isinstance(value, np.floating) else str(int(value))
    label = f":{labels[index]}" if index < len(labels) else ""
    return f"{number}:{index}{label}".encode()


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
    sequence: SequenceStep | None = None
    refusal: ServeError | None = None
    until_ms: float = float("-inf")
    changes: int = 0


#: Name, datatype, shape and bytes of one output.
OutputShape = tuple[str, str, tuple[int, ...], int]
#: What the start of a plain reply depends on: the deployment key, and its outputs.
PlainKey = tuple[str, tuple[OutputShape, ...]]


class ReplyStart:
    """Response head and JSON part of a reply whose outputs all follow as bytes.

    ``order`` are the positions of the model's outputs in the order of the reply, ``nbytes`` is the
    size of the whole body.
    """

    __slots__ = ("data", "key", "nbytes", "order")

    def __init__(self, key: PlainKey, order: tuple[int, ...], data: bytes, nbytes: int) -> None:
        self.key = key
        self.order = order
        self.data = data
        self.nbytes = nbytes


class DecodedRequest:
    """Everything that a request says but its raw tensors. Requests with the same bytes share it.

    So they are checked once: the data plane keeps in ``checked`` what it found.

    ``in_place`` holds the inputs if all of them can stay where they are received. ``direct`` says
    that outputs are wanted as they are, ``plain`` that all are also wanted as bytes in the reply
    over HTTP; ``start`` is that of the last such reply. A path of HTTP names the model, a message
    of gRPC has ``model`` and ``version``.
    """

    __slots__ = (
        "binary_bytes", "binary_default", "checked", "direct", "id", "in_place", "model",
        "parameters", "plain", "sources", "start", "targets", "version",
    )  # fmt: skip

    def __init__(
        self,
        id: str,
        sources: tuple[InputSource, ...],
        targets: tuple[OutputTarget, ...],
        parameters: Mapping[str, Parameter],
        model: str = "",
        version: str = "",
    ) -> None:
        self.checked: CheckedCall | None = None
        self.start: ReplyStart | None = None
        self.id = id
        self.sources = sources
        self.targets = targets
        self.parameters = parameters
        self.model = model
        self.version = version
        self.binary_default = parameters.get("binary_data_output") is True
        self.binary_bytes = sum(source.nbytes for source in sources if source.follows)
        self.in_place = sources if all(source.in_place for source in sources) else None
        self.direct = not any(target.classes or target.region for target in targets)
        binary = all(map(self.binary, targets)) if targets else self.binary_default
        self.plain = self.direct and binary

    def binary(self, target: OutputTarget) -> bool:
        """Whether an output goes as bytes after the reply's JSON part."""
        return self.binary_default if target.binary is None else target.binary

    def as_json(self, target: OutputTarget) -> bool:
        """Whether an output goes as numbers or texts in the reply's JSON part."""
        return not (self.binary(target) or target.classes or target.region is not None)


@dataclass(slots=True)
class InferenceCall:
    """One inference call, decoded but not yet checked against the model.

    Input bytes already lie in a shared-memory arena. ``budget_ms`` is the caller's own deadline
    from now (gRPC deadline), ``None`` if it gave none; ``slo_ms`` and ``timeout`` stand in the
    parameters of ``decoded``. ``elapsed_ms`` is how long it was under way before, at a router.
    ``trace`` names the caller's span.
    It is ``accepted`` if it belongs to a request that was: a server that ends does not refuse it.
    ``endpoint`` is what the caller uses, as errors name it.
    """

    model: str
    version: str
    id: str
    inputs: tuple[Tensor, ...]
    decoded: DecodedRequest
    budget_ms: float | None = None
    elapsed_ms: float = 0.0
    trace: TraceFields = ()
    accepted: bool = False
    endpoint: str = "HTTP end point"
