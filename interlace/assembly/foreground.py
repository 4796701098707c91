"""One execution of a model in this process, where a debugger can stop it."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, NoReturn

import numpy as np

from interlace.core.errors import RepositoryError, ServeError
from interlace.core.model import Format, Model, SampleValue
from interlace.core.tensor import Span, Tensor, TensorSpec, element_count
from interlace.core.user_errors import InputError, UserError
from interlace.formats import open_model
from interlace.formats.arrays import read_value, sample_inputs, wire_bytes
from interlace.formats.python_backend.api import TritonModelException
from interlace.formats.python_backend.runner import PythonRunner
from interlace.formats.runner import (
    Answer,
    Array,
    ModelResponse,
    ModelRunner,
    OutgoingCall,
    RequestInputs,
    TypedArray,
)
from interlace.repository.draft import read
from interlace.repository.folder import scan_folder
from interlace.repository.model import complete
from interlace.server.dataplane.call import DecodedRequest, InferenceCall
from interlace.server.dataplane.validation import check
from interlace.server.model_table import ServedModel

#: A call that names no outputs and has no parameters.
_PLAIN: Final = DecodedRequest("", (), (), {})


def run_model(
    folder: Path, version: int | None, given: Mapping[str, SampleValue]
) -> list[Mapping[str, TypedArray]]:
    """The outputs of a model for these values; inputs without one get sample values.

    They are one response; those of a decoupled model are as many as it sends.

    Without ``version`` the newest that is served is taken.

    Raises:
        InputError: an input that the model does not have, or a value that does not fit it.
        RepositoryError: the model cannot be served.
        UserError: the model failed; its traceback is on standard error.
    """
    root, name = folder.resolve().parent, folder.resolve().name
    runner, model = _open(root, name, version or _newest(root, name))
    try:
        arrays = _inputs(model, given)
        if isinstance(runner, PythonRunner):
            return _responses(runner, arrays)
        outputs = runner.run(arrays)
        specs = model.signature.outputs
        return [{one.name: TypedArray(one.datatype, outputs[one.name]) for one in specs}]
    finally:
        runner.close()


def _responses(runner: PythonRunner, arrays: Mapping[str, Array]) -> list[Mapping[str, TypedArray]]:
    answers: list[Answer | None] = []
    request = RequestInputs(arrays, respond=lambda answer, final: answers.append(answer))
    answers += runner.run_requests([request], _no_calls)
    for answer in answers:
        if isinstance(answer, ServeError):
            if answer.__cause__ is not None:
                traceback.print_exception(answer.__cause__)
            raise UserError(answer.detail)
    return [one.outputs for one in answers if isinstance(one, ModelResponse) and one.outputs]


def _newest(root: Path, name: str) -> int:
    found = scan_folder(root, name)
    if found is None or found.error:
        where, said = str(root / name), "no model folder"
        raise UserError(found.error if found and found.error else f"{where}: {said}")
    return found.versions[-1]


def _open(root: Path, name: str, version: int) -> tuple[ModelRunner, Model]:
    draft = read(root, name, version)
    threads = len(os.sched_getaffinity(0))
    provisional = draft.provisional()
    runner = open_model(provisional, threads, None, _no_calls)
    model = complete(draft, runner.signature, 0)
    stated = provisional.signature.inputs and provisional.signature.outputs
    described = not stated and model.format is not Format.PYTHON
    if described or model.sequences is not None:  # it takes tensors as it describes them
        runner.close()
        runner = open_model(model, threads, None, _no_calls)
    return runner, model


def _no_calls(asked: OutgoingCall) -> NoReturn:
    what = f"cannot {asked.control or 'call'} '{asked.model}'"
    raise TritonModelException(f"{what}: interlace run opens one model alone; use interlace serve")


def _inputs(model: Model, given: Mapping[str, SampleValue]) -> dict[str, Array]:
    specs = {spec.name: spec for spec in model.signature.inputs}
    unknown = sorted(given.keys() - specs.keys())
    if unknown:
        raise InputError(f"--input {unknown[0]}: the model takes {', '.join(specs)}")
    samples = sample_inputs(model, model.signature, 1)
    arrays = {
        name: _given(spec, given[name], model.signature.batched) if name in given else samples[name]
        for name, spec in specs.items()
        if name in given or not spec.optional
    }
    tensors = [
        Tensor(name, specs[name].datatype, array.shape, Span(0, 0, len(wire_bytes(array))))
        for name, array in arrays.items()
    ]
    try:
        alone = replace(model, sequences=None)  # it is a sequence by itself
        check(ServedModel(alone), InferenceCall(model.name, "", "", tuple(tensors), _PLAIN))
    except ServeError as error:
        raise InputError(f"--input: {error.detail}") from None
    return arrays


def _given(spec: TensorSpec, value: SampleValue, batched: bool) -> Array:
    """A value as the input has it: one without rows becomes one row."""
    try:
        array = read_value(spec, value)
    except (OSError, ValueError, RepositoryError) as error:
        said = f"{error}; expected JSON or @FILE with {spec.datatype} {list(spec.dims)}"
        raise InputError(f"--input {spec.name}: {said}") from None
    if array.ndim == 0:
        array = array.reshape((1,) * len(spec.dims))
    elif array.ndim == 1 and array.size == element_count(spec.dims):
        array = array.reshape(spec.dims)  # a file of plain values
    return array[np.newaxis] if batched and array.ndim == len(spec.dims) else array
