"""Checks of a call against its model's signature: an error names what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from interlace.core.errors import ServeError, bad_input
from interlace.core.model import STREAM_SLO_MS, Model
from interlace.core.sequence import SequenceStep
from interlace.core.tensor import BYTES, ITEM_BYTES, Tensor, TensorSpec, element_count
from interlace.server.dataplane.call import CheckedCall, InferenceCall
from interlace.server.dataplane.tensor_places import Parameter
from interlace.server.model_table import ServedModel

#: The longest sequence id, as in Triton.
_ID_CHARS: Final = 128
#: Numbers in parameters are below this; larger ones do not fit the floats they become.
_NUMBER_END: Final = 1 << 63


def _bad(detail: str, call: InferenceCall) -> ServeError:
    """A refusal whose text begins with the request's id, as Triton's do."""
    return bad_input(f"[request id: {call.id or '<id_unknown>'}] {detail}")


def check(served: ServedModel, call: InferenceCall) -> CheckedCall:
    """Check everything but the contents of the tensors.

    Raises:
        ServeError: BAD_INPUT, naming the tensor or parameter, what was found and expected.
    """
    model = served.model
    order = _order(model, call)
    inputs = tuple(call.inputs[i] for i in order)
    specs = {spec.name: spec for spec in model.signature.inputs}
    rows = _rows(model, call, inputs)
    for tensor in inputs:
        _check_tensor(model, call, tensor, specs[tensor.name])
    _check_named_dims(model, call, inputs, specs)
    first = 1 if model.signature.batched else 0
    return CheckedCall(
        served=served,
        key=model.key,
        rows=rows,
        shape=tuple((t.name, t.shape[first:]) for t in inputs),
        priority=_priority(call.decoded.parameters) or model.terms.priority,
        slo_ms=min(_slo_ms(model, call), *_limits_ms(call.decoded.parameters)),
        outputs=_outputs(model, call),
        order=order,
        sequence=_sequence(model, call, rows) if model.sequences is not None else None,
        inspect=tuple(i for i, t in enumerate(inputs) if t.datatype in (BYTES, "BOOL")),
    )


def check_contents(tensor: Tensor, data: memoryview) -> None:
    """The framing of BYTES elements, and that BOOL bytes are 0 or 1.

    Raises:
        ServeError: BAD_INPUT, with the element and byte at fault.
    """
    if tensor.datatype == BYTES:
        _check_framing(tensor, data)
    elif data.tobytes().translate(None, b"\x00\x01"):
        raise bad_input(f"input '{tensor.name}' is BOOL but holds bytes other than 0 and 1")


def _order(model: Model, call: InferenceCall) -> tuple[int, ...]:
    given: dict[str, int] = {}
    known = {spec.name for spec in model.signature.inputs}
    for i, tensor in enumerate(call.inputs):
        if tensor.name not in known:
            raise bad_input(
                f"unexpected inference input '{tensor.name[:128]}' for model '{model.name}'; "
                f"it takes {_names(sorted(known))}"
            )
        if tensor.name in given:
            raise _bad(f"input '{tensor.name}' is given twice for model '{model.name}'", call)
        given[tensor.name] = i
    missing = [s.name for s in model.signature.inputs if s.name not in given and not s.optional]
    if missing:
        raise _bad(_missing_text(model, list(given), missing), call)
    return tuple(given[spec.name] for spec in model.signature.inputs if spec.name in given)


def _missing_text(model: Model, given: list[str], missing: list[str]) -> str:
    most = len(model.signature.inputs)
    needed = sum(not spec.optional for spec in model.signature.inputs)
    count = f"{most} inputs" if needed == most else f"number of inputs between {needed} and {most}"
    return (
        f"expected {count} but got {len(given)} inputs for model '{model.name}'. Got input(s) "
        f"[{_names(given, ',')}], but missing required input(s) [{_names(missing, ',')}]. "
        f"Please provide all required input(s)."
    )


def _names(names: list[str], between: str = ", ") -> str:
    return between.join(f"'{name}'" for name in names)


def _rows(model: Model, call: InferenceCall, inputs: tuple[Tensor, ...]) -> int:
    """Rows of the call, equal in every input; 1 for a model without a batch dimension."""
    if not model.signature.batched or not inputs:
        return 1
    for tensor in inputs:
        if not tensor.shape or tensor.shape[0] < 1:
            raise _bad(
                f"input '{tensor.name}' of model '{model.name}' needs a batch dimension of at "
                f"least 1 in front, got shape {_dims(tensor.shape)}",
                call,
            )
    rows = inputs[0].shape[0]
    for tensor in inputs[1:]:
        if tensor.shape[0] != rows:
            raise _bad(
                f"input '{tensor.name}' batch size does not match other inputs for "
                f"'{model.name}': {tensor.shape[0]} rows, but '{inputs[0].name}' has {rows}",
                call,
            )
    limit = model.signature.max_batch
    if rows > limit:
        raise _bad(f"inference request batch-size must be <= {limit} for '{model.name}'", call)
    return rows


def _check_tensor(model: Model, call: InferenceCall, tensor: Tensor, spec: TensorSpec) -> None:
    if tensor.datatype != spec.datatype:
        raise _bad(
            f"inference input '{tensor.name}' data-type is '{tensor.datatype}', "
            f"but model '{model.name}' expects '{spec.datatype}'",
            call,
        )
    expected = (-1, *spec.dims) if model.signature.batched else spec.dims
    if len(tensor.shape) != len(expected) or any(
        size < 0 or want not in (-1, size)
        for size, want in zip(tensor.shape, expected, strict=True)
    ):
        raise _bad(
            f"unexpected shape for input '{tensor.name}' for model '{model.name}'. "
            f"Expected {_dims(expected)}, got {_dims(tensor.shape)}.",
            call,
        )
    size = ITEM_BYTES.get(tensor.datatype)
    if size is not None and tensor.span.nbytes != size * element_count(tensor.shape):
        raise _bad(
            f"input byte size mismatch for input '{tensor.name}' for model '{model.name}'. "
            f"Expected {size * element_count(tensor.shape)}, got {tensor.span.nbytes}",
            call,
        )


def _check_named_dims(
    model: Model, call: InferenceCall, inputs: tuple[Tensor, ...], specs: Mapping[str, TensorSpec]
) -> None:
    found: dict[str, tuple[int, str]] = {}
    for tensor in inputs:
        for name, size in specs[tensor.name].named_sizes(tensor.shape).items():
            first, other = found.setdefault(name, (size, tensor.name))
            if first != size:
                raise _bad(
                    f"unexpected shape for input '{tensor.name}' for model '{model.name}'. Its dim "
                    f"'{name}' is {size}, but {first} in input '{other}': one size is expected",
                    call,
                )


def _dims(shape: tuple[int, ...]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"


def _outputs(model: Model, call: InferenceCall) -> tuple[str, ...]:
    known = {spec.name for spec in model.signature.outputs}
    for wanted in call.decoded.targets:
        if wanted.name not in known:
            raise bad_input(
                f"unexpected inference output '{wanted.name[:128]}' for model '{model.name}'; "
                f"it gives {_names(sorted(known))}"
            )
    names = tuple(wanted.name for wanted in call.decoded.targets)
    if len(set(names)) != len(names):
        raise _bad(f"an output of model '{model.name}' is requested twice: {names}", call)
    return names


def _priority(parameters: Mapping[str, Parameter]) -> int:
    value = parameters.get("priority", 0)
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        value = int(value)  # tritonclient.grpc sends it as a string in some versions
    if type(value) is not int or not 0 <= value < _NUMBER_END:
        raise bad_input(f"parameter 'priority' must be an integer of at least 0, got {value!r:.64}")
    return value


def _sequence(model: Model, call: InferenceCall, rows: int) -> SequenceStep:
    """The place of a call in a sequence."""
    given = call.decoded.parameters
    id = given.get("sequence_id", 0)
    if isinstance(id, bool | float) or not id:
        raise bad_input(
            f"inference request to model '{model.name}' must specify a non-zero or non-empty "
            f"correlation ID"
        )
    if isinstance(id, int) and not 0 < id < 1 << 64:
        raise _bad(f"parameter 'sequence_id' must be a number below 2^64, got {id}", call)
    if isinstance(id, str) and len(id) > _ID_CHARS:
        raise _bad(f"parameter 'sequence_id' is longer than {_ID_CHARS} characters", call)
    if rows > 1:
        raise bad_input(
            f"inference request to model '{model.name}' must specify batch-size 1 due to "
            f"requirements of sequence batcher"
        )
    start, end = (given.get(f"sequence_{flag}", False) for flag in ("start", "end"))
    if not (isinstance(start, bool) and isinstance(end, bool)):
        raise _bad("parameters 'sequence_start' and 'sequence_end' must be booleans", call)
    return SequenceStep(id, start, end)


def _slo_ms(model: Model, call: InferenceCall) -> float:
    """The model's own limit; models that call it know theirs, unless somebody set one."""
    called = call.endpoint == "BLS" and model.terms.slo_assumed
    return max(model.limit_ms, STREAM_SLO_MS) if called else model.limit_ms


def _limits_ms(parameters: Mapping[str, Parameter]) -> tuple[float, float]:
    """The caller's limits in ms: ``slo_ms``, and ``timeout``, which is us from end to end."""
    slo_ms = parameters.get("slo_ms")
    if slo_ms is None:
        slo_ms = float("inf")
    elif isinstance(slo_ms, bool | str) or not 0 < slo_ms < _NUMBER_END:
        raise bad_input(f"parameter 'slo_ms' must be a number above 0, got {slo_ms!r:.64}")
    timeout_us = parameters.get("timeout", 0)
    if type(timeout_us) is not int or not 0 <= timeout_us < _NUMBER_END:
        raise bad_input(f"parameter 'timeout' must be whole microseconds, got {timeout_us!r:.64}")
    return (float(slo_ms), timeout_us / 1000.0 if timeout_us else float("inf"))


def _check_framing(tensor: Tensor, data: memoryview) -> None:
    at, end, elements = 0, len(data), 0
    expected = element_count(tensor.shape)
    while at < end and elements < expected:
        if end - at < 4:
            raise bad_input(_framing_text(tensor, elements, at, "its 4-byte length is cut off"))
        size = int.from_bytes(data[at : at + 4], "little")
        if size > end - at - 4:
            text = f"length {size} runs past the tensor's {end} bytes"
            raise bad_input(_framing_text(tensor, elements, at, text))
        at += 4 + size
        elements += 1
    if elements < expected or at < end:
        raise bad_input(
            f"input '{tensor.name}' of shape {_dims(tensor.shape)} needs {expected} BYTES "
            f"elements; {elements} were found, with {end - at} bytes left over"
        )


def _framing_text(tensor: Tensor, element: int, at: int, fault: str) -> str:
    return f"input '{tensor.name}': BYTES element {element} at byte {at}: {fault}"
