"""A Python backend model behind the contract of a runner."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from interlace.core.errors import Reason, RepositoryError, ServeError
from interlace.core.model import Model
from interlace.formats.arrays import model_inputs
from interlace.formats.model_file import execute_file
from interlace.formats.python_backend import api
from interlace.formats.python_backend.calls import API_NAME, ModelCalls, api_module
from interlace.formats.python_backend.own_modules import OwnModules
from interlace.formats.runner import Array, CallModels, RequestInputs, TypedArray

#: How the names of models' modules begin; those in one process differ.
_MODULES: Final = "interlace_python_model_"
_CLASS: Final = "class TritonPythonModel with execute(self, requests)"
_NO_TENSORS: Final = (
    "input [ { name data_type dims } ] and output [ ... ] in config.pbtxt, or auto_complete_config"
)
_DETAIL_CHARS: Final = 2000
Outputs = Mapping[str, TypedArray]


class PythonRunner:
    """Runs ``execute`` on lists of requests."""

    resident_bytes = 0
    shared_bytes = 0
    warnings: tuple[str, ...] = ()
    cold = None

    def __init__(self, model: Model, threads: int) -> None:
        """Execute ``model.py`` and initialize its model.

        Raises:
            RepositoryError: there is no such class, or nothing says what its tensors are.
            Exception: whatever the model raises.
        """
        self.stacked = model.terms.stacked
        self._loop: asyncio.AbstractEventLoop | None = None
        self._name = model.name
        self._own = OwnModules(Path(model.path))
        self._calls = ModelCalls(self._activate)
        self._api = api_module(self._calls)
        self._activate()
        code = execute_file(model.source, f"{_MODULES}{model.key}".replace(".", "_"))
        kind: Any = getattr(code, "TritonPythonModel", None)
        if not callable(getattr(kind, "execute", None)):
            found = (
                "no TritonPythonModel" if kind is None else "a TritonPythonModel without execute"
            )
            raise RepositoryError(str(model.source), found, _CLASS)
        config = _configured(model, kind)
        self.signature = config.signature()
        stated = model.signature.inputs and model.signature.outputs
        self._served = model.signature if stated else self.signature
        self._datatypes = {spec.name: spec.datatype for spec in self._served.inputs}
        self._specs = {spec.name: spec for spec in self._served.outputs}
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(threads)
        self._model: Any = kind()
        if hasattr(self._model, "initialize"):
            self._model.initialize(_arguments(model, config))

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Try the model: each row is a request of its own. The outputs are the first one's."""
        batched = self._served.batched and not self.stacked
        rows = len(next(iter(inputs.values()))) if batched else 1
        requests = [
            RequestInputs(
                {name: array[row : row + 1] if batched else array for name, array in inputs.items()}
            )
            for row in range(rows)
        ]
        outputs: dict[str, Array] = {}
        for answer in reversed(self.run_requests(requests)):
            if isinstance(answer, ServeError):
                raise answer
            outputs = {name: value.array for name, value in answer.items()}
        return outputs

    def run_requests(
        self, requests: Sequence[RequestInputs], call: CallModels | None = None
    ) -> list[Outputs | ServeError]:
        """The outputs of each request, or why it failed; its code may ``call`` other models.

        An exception fails a lone request. Of several the caller runs each again, alone.

        Raises:
            TritonModelException: ``execute`` failed on several requests.
        """
        self._activate()
        received = [self._received(request) for request in requests]
        self._calls.call = call
        try:
            responses = self._execute(received)
        except (Exception, SystemExit) as error:
            if isinstance(error, ServeError) and len(requests) == 1:
                return [error]
            if isinstance(error, ServeError | MemoryError):
                raise
            text = f"{type(error).__name__}: {error}{_place(error, self._own.folder)}"
            failed = self._failed(text)
            failed.__cause__ = error
            if len(requests) > 1:
                raise api.TritonModelException(failed.detail) from error
            return [failed]
        finally:
            self._calls.call = None
        if wrong := _wrong_list(responses, len(requests)):
            return [self._failed(wrong)] * len(requests)
        return [self._answer(*each) for each in zip(responses, requests, strict=True)]

    def close(self) -> None:
        """Let the model finalize, and forget it."""
        self._activate()
        try:
            if hasattr(self._model, "finalize"):
                self._model.finalize()
        except (Exception, SystemExit) as error:  # other models of this process go on
            place = _place(error, self._own.folder)
            api.Logger.log_error(f"finalize failed: {type(error).__name__}: {error}{place}")
        self._model = None
        if self._loop is not None:
            self._loop.close()
        self._own.deactivate()

    def _activate(self) -> None:
        self._own.activate()
        sys.modules[API_NAME] = self._api
        api.Logger.model = self._name

    def _execute(self, requests: list[api.InferenceRequest]) -> Any:
        returned = self._model.execute(requests)
        if not inspect.iscoroutine(returned):
            return returned
        if self._loop is None:  # kept: what a model opens on it lives from call to call
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(returned)

    def _received(self, request: RequestInputs) -> api.InferenceRequest:
        inputs = {}
        for name, array in model_inputs(request.inputs, self._served).items():
            # Models write into their inputs, and torch asks for arrays that it could write into.
            own = array if array.flags.writeable else array.copy()
            inputs[name] = TypedArray(self._datatypes[name], own)
        received: api.InferenceRequest = self._api.InferenceRequest.received(
            inputs, request.outputs or tuple(self._specs), request.context
        )
        return received

    def _answer(
        self, response: api.InferenceResponse, request: RequestInputs
    ) -> Outputs | ServeError:
        error = response.error()
        if error is not None:
            return ServeError(error.reason, error.message()[:_DETAIL_CHARS])
        outputs = {}
        for tensor in response.output_tensors():
            spec = self._specs.get(tensor.name())
            if spec is None:
                text = f"unexpected inference output '{tensor.name()}' for model '{self._name}'"
                return ServeError(Reason.BACKEND, text)
            if request.outputs and spec.name not in request.outputs:
                continue
            datatype, array = tensor.contents
            if spec.model_dims is not None:
                try:
                    array = array.reshape(spec.client_shape(array.shape))
                except ValueError:
                    text = f"output '{spec.name}' of shape {tensor.shape()} has no {spec.dims}"
                    return self._failed(text)
            outputs[spec.name] = TypedArray(datatype, array)
        return outputs

    def _failed(self, message: str) -> ServeError:
        text = f"Failed to process the request(s) for model '{self._name}', message: {message}"
        return ServeError(Reason.BACKEND, text[:_DETAIL_CHARS])


def _wrong_list(responses: Any, count: int) -> str:
    """What is wrong with the answer of ``execute``, in Triton's words; empty if nothing is."""
    if not isinstance(responses, list):
        return f"Expected a list in the execute return, found type '{type(responses)}'."
    if len(responses) != count:
        return (
            "Number of InferenceResponse objects do not match the number of InferenceRequest "
            f"objects. InferenceRequest(s) size is:{count}, and InferenceResponse(s) size is:"
            f"{len(responses)}"
        )
    for one in responses:
        if not isinstance(one, api.InferenceResponse):
            return (
                "Expected an 'InferenceResponse' object in the execute function return list, "
                f"found type '{type(one)}'."
            )
    return ""


def _place(error: BaseException, folder: Path) -> str:
    """The last line of the model's own files that an error came through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(f"{folder}/")]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def _configured(model: Model, kind: Any) -> api.ModelConfig:
    """The model's configuration, completed by the model itself before it is deployed.

    Raises:
        RepositoryError: it names no inputs or no outputs, or the model contradicts it.
    """
    config = api.ModelConfig(json.loads(model.config_json or "{}"))
    deployed = model.generation >= 0 and model.config_json
    try:
        if hasattr(kind, "auto_complete_config") and not deployed:
            config = kind.auto_complete_config(config) or config
        signature = config.signature()
    except ValueError as error:
        where = f"{model.source}: auto_complete_config"
        raise RepositoryError(where, str(error), "what config.pbtxt says") from error
    if not (signature.inputs and signature.outputs):
        raise RepositoryError(str(model.source), "no inputs or outputs", _NO_TENSORS)
    return config


def _arguments(model: Model, config: api.ModelConfig) -> dict[str, str]:
    """The argument of ``initialize``: text by text, as in Triton."""
    return {
        "model_config": json.dumps(config.as_dict()),
        "model_instance_kind": "CPU",
        "model_instance_name": f"{model.name}_0_0",
        "model_instance_device_id": "0",
        "model_repository": str(Path(model.path).parent),
        "model_version": str(model.version),
        "model_name": model.name,
    }
