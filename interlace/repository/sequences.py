"""Triton's ``sequence_batching``: which tensors of a model the server fills and keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from interlace.core.errors import RepositoryError
from interlace.core.model import Format
from interlace.core.sequence import ControlInput, ControlKind, SequenceTerms, StateTensor
from interlace.core.tensor import ITEM_BYTES, TensorSpec, element_count
from interlace.repository.folder import leads_out
from interlace.repository.model_config import DATA_TYPES, ModelConfig

KEY: Final = "sequence_batching"
#: Triton's default.
_IDLE_US: Final = 1_000_000
#: The lists of false and true by datatype.
_FLAGS: Final = {
    "int32_false_true": "INT32",
    "fp32_false_true": "FP32",
    "bool_false_true": "BOOL",
}


def iterative_controls(config: ModelConfig) -> tuple[ControlInput, ...]:
    """The control tensors of code that reschedules its requests, each a sequence of its own.

    Raises:
        RepositoryError: the key, what was found and what was expected.
    """
    written = config.values.get(KEY, {})
    return tuple(_controls(config, written)) if written.get("iterative_sequence") else ()


_ID: Final = ControlKind.CORRID


def read_sequences(config: ModelConfig, folder: Path, format: Format) -> SequenceTerms | None:
    """What a config says of sequences; ``None`` if it says nothing.

    An iterative sequence is one request that the code of its model reschedules: its requests are
    those of a model without sequences.

    Raises:
        RepositoryError: the key, what was found and what was expected.
    """
    written = config.values.get(KEY)
    if written is None:
        return None
    if format not in (Format.PYTHON, Format.ONNX):
        raise config.error(KEY, f"a model of {format.value}", "one of onnx, or a TritonPythonModel")
    if written.get("iterative_sequence"):
        if format is not Format.PYTHON:
            expected = "false: only a TritonPythonModel can reschedule requests"
            raise config.error(f"{KEY}.iterative_sequence", "true", expected)
        if written.get("state"):
            expected = "none beside iterative_sequence: attributes of the TritonPythonModel"
            raise config.error(f"{KEY}.state", "tensors", expected)
        return None
    idle_ms = (written.get("max_sequence_idle_microseconds") or _IDLE_US) / 1000.0
    candidates = written.get("oldest", {}).get("max_candidate_sequences", 0)
    controls, states = _controls(config, written), _states(config, written, folder)
    terms = SequenceTerms(idle_ms, candidates, tuple(controls), tuple(states))
    # An instance of Triton's has one slot then: code may keep the state of its one sequence.
    slot = not (config.values.get("max_batch_size") or "oldest" in written or terms.states)
    if slot and format is Format.PYTHON and all(c.kind is not _ID for c in terms.controls):
        return replace(terms, candidates=1)
    return terms


def _controls(config: ModelConfig, written: Mapping[str, Any]) -> Iterator[ControlInput]:
    tensors: dict[ControlKind, str] = {}
    for place, tensor in enumerate(written.get("control_input", ())):
        path, name = f"{KEY}.control_input[{place}]", tensor.get("name", "")
        if not name or name in tensors.values():
            expected = "the name of a tensor that no other control_input has"
            raise config.error(f"{path}.name", f"'{name}'", expected)
        for control in tensor.get("control", ()):
            kind = ControlKind(control.get("kind", "CONTROL_SEQUENCE_START"))
            path = f"{KEY}.control_input[{place}].control"
            if kind in tensors:
                found = f"'{tensors[kind]}' and '{name}' of kind {kind.value}"
                raise config.error(path, found, "one control of a kind")
            tensors[kind] = name
            values, datatype = (0.0, 1.0), DATA_TYPES.get(control.get("data_type", ""))
            if kind is not ControlKind.CORRID:
                given = [key for key in _FLAGS if control.get(key)]
                if len(given) != 1 or len(control[given[0]]) != 2:
                    raise config.error(path, f"{control}", f"one of {', '.join(_FLAGS)}: [ 0, 1 ]")
                datatype, (false, true) = _FLAGS[given[0]], control[given[0]]
                values = float(false), float(true)
            if datatype is None:
                raise config.error(path, "no data_type", "data_type: TYPE_UINT64 or another")
            yield ControlInput(TensorSpec(name, datatype, (1,)), kind, values)


def _states(config: ModelConfig, written: Mapping[str, Any], folder: Path) -> Iterator[StateTensor]:
    for place, state in enumerate(written.get("state", ())):
        path = f"{KEY}.state[{place}]"
        dims, datatype = tuple(state.get("dims", ())), DATA_TYPES.get(state.get("data_type", ""))
        names = state.get("input_name"), state.get("output_name")
        if datatype is None or not all(names):
            expected = "input_name, output_name, data_type and dims"
            raise config.error(path, f"{state}", expected)
        spec = TensorSpec(state["input_name"], datatype, dims)
        initial: dict[str, Any] = next(iter(state.get("initial_state", ())), {})
        first = tuple(initial.get("dims", dims))
        first = tuple(1 if dim < 0 else dim for dim in first)
        name = initial.get("data_file", "")
        file = _file(config, path, folder, name, datatype, first) if name else ""
        yield StateTensor(spec, state["output_name"], first, file)


def _file(
    config: ModelConfig, path: str, folder: Path, name: str, datatype: str, dims: tuple[int, ...]
) -> str:
    file = folder / "initial_state" / name
    nbytes = ITEM_BYTES.get(datatype, 0) * element_count(dims)
    if leads_out(name) or not file.is_file():
        expected = "a file in the folder initial_state of the model"
        raise config.error(f"{path}.initial_state", f"'{name}'", expected)
    if nbytes and file.stat().st_size != nbytes:
        found = f"{file.stat().st_size} bytes in '{name}'"
        raise config.error(f"{path}.initial_state", found, f"{nbytes}, {datatype} {list(dims)}")
    return str(file.absolute())


def join_tensors(
    terms: SequenceTerms,
    config: ModelConfig,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    said: Sequence[TensorSpec] | None,
) -> tuple[SequenceTerms, tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """The terms with the model's own tensors, and all inputs and outputs of the model.

    ``said`` are the outputs that its file describes; ``None`` for code, which takes any tensors.

    Raises:
        RepositoryError: the model has no such tensor, or one of another datatype.
    """
    if said is None:
        return terms, (*inputs, *terms.inputs), (*outputs, *terms.outputs)
    known = {spec.name: spec for spec in inputs}
    for spec in terms.inputs:
        _check(config, spec, known, "input")
    results = {spec.name: spec for spec in said}
    for spec in terms.outputs:
        _check(config, spec, results, "output")
    own = replace(
        terms,
        controls=tuple(replace(one, spec=known[one.spec.name]) for one in terms.controls),
        states=tuple(replace(one, spec=known[one.spec.name]) for one in terms.states),
    )
    listed = {spec.name for spec in outputs}
    rest = tuple(results[one.output] for one in own.states if one.output not in listed)
    return own, tuple(inputs), (*outputs, *rest)


def _check(
    config: ModelConfig, spec: TensorSpec, known: Mapping[str, TensorSpec], kind: str
) -> None:
    own = known.get(spec.name)
    if own is None or own.datatype != spec.datatype:
        found = f"{kind} '{spec.name}' of {spec.datatype}"
        tensors = ", ".join(f"'{one.name}' of {one.datatype}" for one in known.values())
        raise RepositoryError(config.where(KEY), found, f"an {kind} of the model: {tensors}")
