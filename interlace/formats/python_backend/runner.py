"""A Python backend model behind the contract of a runner."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any, Final

from interlace.core.errors import Reason, RepositoryError, ServeError
from interlace.core.model import Model
from interlace.core.sequence import SequenceStep
from interlace.formats.arrays import control_array, model_inputs
from interlace.formats.model_file import execute_file, limited_to, place_of
from interlace.formats.python_backend import api
from interlace.formats.python_backend.calls import API_NAME, CallHook, api_module
from interlace.formats.python_backend.open_responses import OpenResponses
from interlace.formats.python_backend.own_modules import OwnModules
from interlace.formats.python_backend.readiness import Readiness
from interlace.formats.python_backend.waiting_request import (
    WaitingRequest,
    first_of_sequence,
    whole_sequence,
    wrong_list,
)
from interlace.formats.runner import (
    Answer,
    Array,
    CallModels,
    ModelResponse,
    RequestInputs,
    TypedArray,
)

#: How the names of models' modules begin; those in one process differ.
_MODULES: Final = "interlace_python_model_"
_CLASS: Final = "class TritonPythonModel with execute(self, requests)"
_NO_TENSORS: Final = (
    "input [ { name data_type dims } ] and output [ ... ] in config.pbtxt, or auto_complete_config"
)
_DETAIL_CHARS: Final = 2000
_FINALIZE_S: Final = 10.0


class PythonRunner:
    """Runs ``execute`` on lists of requests."""

    resident_bytes = 0
    shared_bytes = 0
    warnings: tuple[str, ...] = ()
    cold = None

    def __init__(self, model: Model, threads: int, call: CallModels | None = None) -> None:
        """Execute ``model.py`` and initialize its model, which may load others by ``call``.

        Raises:
            RepositoryError: there is no such class, or nothing says what its tensors are.
            Exception: whatever the model raises.
        """
        self.stacked = model.terms.stacked
        self._sequences, self._controls = model.sequences, model.controls
        self._loop: asyncio.AbstractEventLoop | None = None
        self._readiness: Readiness | None = None
        self._name = model.name
        self._own = OwnModules(model.source.parent)
        self._calls = CallHook(self._activate)
        self._api = api_module(self._calls, str(model.source.parent))
        self._activate()
        code = execute_file(model.source, f"{_MODULES}{model.key}".replace(".", "_"))
        kind: Any = getattr(code, "TritonPythonModel", None)
        if not callable(getattr(kind, "execute", None)):
            found = (
                "no TritonPythonModel" if kind is None else "a TritonPythonModel without execute"
            )
            raise RepositoryError(str(model.source), found, _CLASS)
        config = _configured(model, kind)
        self._iterative = config.iterative
        self._begun = count(1)  #: names of iterative sequences
        self._waiting: list[WaitingRequest] = []
        self.signature = config.signature()
        stated = model.signature.inputs and model.signature.outputs
        self._served = model.signature if stated else self.signature
        self._datatypes = {spec.name: spec.datatype for spec in self._served.inputs}
        self._specs = {spec.name: spec for spec in self._served.outputs}
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(threads)
        self._model: Any = kind()
        if hasattr(self._model, "initialize"):
            with self._calls.during(None, call):
                self._model.initialize(_arguments(model, config))

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Try the model: each row is a request of its own. The outputs are the first one's."""
        batched = self._served.batched and not self.stacked
        rows = len(next(iter(inputs.values()))) if batched else 1
        answers: list[Answer | None] = []
        requests = [
            RequestInputs(
                {
                    name: array[row : row + 1] if batched else array
                    for name, array in inputs.items()
                },
                respond=lambda answer, final: answers.append(answer),
            )
            for row in range(rows)
        ]
        answers += self.run_requests(requests)
        outputs: dict[str, Array] = {}
        for answer in reversed(answers):
            if isinstance(answer, ServeError):
                raise answer
            if answer:
                outputs = {name: value.array for name, value in answer.outputs.items()}
        return outputs

    def run_requests(
        self, requests: Sequence[RequestInputs], call: CallModels | None = None
    ) -> list[Answer]:
        """The response to each request, or why it failed; of a decoupled model nothing but that.

        Its code may ``call`` other models until then. Outputs may share memory with inputs, and are
        of any shape. A ``stacked`` runner is given one request with the rows of all.

        An exception fails a lone request. Of several the caller runs each again, alone; of a
        decoupled model all fail, since some may have responses.

        Raises:
            TritonModelException: ``execute`` failed on several requests.
        """
        answers = self.begin(requests, call)
        while not answers.over and self.left:
            self.iterate()
        with self._calls.during(call, call):
            return self._ended(answers, requests[0].cancelled)

    @property
    def joins(self) -> int:
        """The most rows that it executes at a time; 0 if its code wants no request again."""
        return max(1, self._served.max_batch) if self._iterative else 0

    @property
    def left(self) -> bool:
        """Whether there are requests to be executed."""
        return bool(self._waiting)

    def begin(
        self, requests: Sequence[RequestInputs], call: CallModels | None = None
    ) -> OpenResponses:
        """Have requests executed with the next call of ``iterate``."""
        self._activate()
        answers = OpenResponses(len(requests))
        self._waiting += [
            WaitingRequest(self._received(at, one, answers), one, answers, at, call)
            for at, one in enumerate(requests)
        ]
        return answers

    def iterate(self) -> None:
        """Execute requests of one shape, in the order in which they have waited.

        Requests that are rescheduled wait behind the others.

        Raises:
            TritonModelException: as ``run_requests``, of a model that is not iterative.
        """
        self._activate()
        batch = self._next_batch()
        with self._calls.during(batch[0].call, batch[0].call):
            self._execute_once(batch)

    def _next_batch(self) -> list[WaitingRequest]:
        """Take the requests that are executed next; all, unless the model is iterative."""
        waiting, self._waiting = self._waiting, []
        if not self._iterative:
            return waiting
        first, rows, batch = waiting[0], 0, list[WaitingRequest]()
        for one in waiting:
            fits = one.shape == first.shape and not (batch and (one.alone or first.alone))
            if fits and (not batch or rows + one.rows <= self.joins):
                batch.append(one)
                rows += one.rows
            else:
                self._waiting.append(one)
        return batch

    def _execute_once(self, batch: Sequence[WaitingRequest]) -> None:
        """Execute a batch. Whoever keeps a request may still respond afterwards."""
        received = [one.received for one in batch]
        try:
            returned = self._execute(received)
        except (Exception, SystemExit) as error:
            self._raised(error, batch)
            return
        if wrong := self._wrong_return(returned, received):
            failed = self._failed(wrong)
            if len(batch) > 1 and not (self._iterative or self.signature.decoupled):
                raise api.TritonModelException(failed.detail)
            for one in batch:
                one.end(failed)
            return
        for one, response in zip(batch, returned or (), strict=False):
            one.answers.kept.append(response)
            if response is not None:
                one.end(self._answer(response, one.asked))
        for one in batch:
            if not one.received.rescheduled:
                continue
            if one.asked.cancelled():
                one.end(ServeError(Reason.CANCELLED, "the client went away"))
                continue
            id = one.received.correlation_id()
            one.received.again(self._control_tensors(id, start=False))
            one.begun = True
            self._waiting.append(one)

    def _raised(self, error: Exception | SystemExit, batch: Sequence[WaitingRequest]) -> None:
        """Fail the requests for which ``execute`` raised an error, or raise it for several.

        A model that is iterative receives those of several again that it had not begun, alone.
        """
        text = f"{type(error).__name__}: {error}{place_of(error, self._own.folder)}"
        failed = self._failed(text)
        failed.__cause__ = error
        answer = error if isinstance(error, ServeError) else failed
        if self._iterative:
            for one in batch:
                if one.begun or len(batch) == 1 or self.signature.decoupled:
                    one.end(answer)
                else:
                    one.alone = True
                    self._waiting.append(one)
            return
        if self.signature.decoupled or len(batch) == 1:
            if isinstance(error, MemoryError):
                raise error
            if not any(one.open for one in batch):  # nobody receives it
                api.Logger.log_error(failed.detail)
            for one in batch:
                one.end(answer)
            return
        if isinstance(error, ServeError | MemoryError):
            raise error
        raise api.TritonModelException(failed.detail) from error

    def _wrong_return(self, returned: Any, requests: Sequence[api.InferenceRequest]) -> str:
        """What is wrong with what ``execute`` returned, in Triton's words; empty if nothing is."""
        if not self._iterative and any(one.rescheduled for one in requests):
            return (
                "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the "
                "model has no sequence_batching { iterative_sequence: true }"
            )
        if self.signature.decoupled:
            if returned is None:
                return ""
            return (
                f"Python model '{self._name}' is using the decoupled mode and the execute function "
                "must return None."
            )
        if returned is None and all(one.responds or one.rescheduled for one in requests):
            return ""
        return wrong_list(returned, requests)

    def watch(self, changed: Callable[[bool], None]) -> None:
        """Tell every half second whether ``is_ready`` of the model says so, if it has that.

        Until then it is ready. Any thread may call ``changed``.
        """
        if hasattr(self._model, "is_ready"):
            self._readiness = Readiness(self._model.is_ready, changed)

    def close(self) -> None:
        """Let the model finalize, for 10 s at most, and forget it."""
        if self._readiness is not None:
            self._readiness.close()
        self._activate()
        try:
            if hasattr(self._model, "finalize"):
                with limited_to(_FINALIZE_S):
                    self._model.finalize()
        except (Exception, SystemExit) as error:  # other models of this process go on
            place = place_of(error, self._own.folder)
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

    def _ended(self, answers: OpenResponses, look: Callable[[], object]) -> list[Answer]:
        """Wait for responses, also by tasks that ``execute`` began and did not wait for."""
        loop = self._loop
        if loop is None or not asyncio.all_tasks(loop):
            return answers.wait(look)
        thread = Thread(target=loop.run_forever, daemon=True)
        thread.start()
        try:
            return answers.wait(look)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _received(
        self, index: int, request: RequestInputs, answers: OpenResponses
    ) -> api.InferenceRequest:
        decoupled = self.signature.decoupled

        def send(response: api.InferenceResponse | None, final: bool) -> None:
            if not answers.open(index):
                return
            answer = None if response is None else self._answer(response, request)
            if decoupled:
                request.respond(answer, final)
            else:
                answers.kept.append(response)  # its outputs may be those of a called model
            if final and isinstance(answer, ServeError):
                answers.end(index, answer)
            elif final or (answer is not None and not decoupled):
                answers.end(index, ModelResponse() if decoupled or answer is None else answer)

        inputs = {}
        for name, array in model_inputs(request.inputs, self._served).items():
            inputs[name] = TypedArray(self._datatypes[name], array)
        wanted, context = request.outputs or tuple(self._specs), request.context
        if self._sequences is not None and not context.parameters:  # a trial
            context = whole_sequence(self._sequences, index + 1, inputs)
        if self._iterative:
            context, id = first_of_sequence(context, next(self._begun))
            inputs |= self._control_tensors(id, start=True)
        received: api.InferenceRequest = self._api.InferenceRequest.received(
            inputs,
            wanted,
            context,
            request.cancelled,
            answers.state(index, send, decoupled),
        )
        return received

    def _control_tensors(self, id: int | str, start: bool) -> dict[str, TypedArray]:
        """The control tensors of a request that may be rescheduled."""
        shape = (1, 1) if self._served.batched else (1,)
        step = SequenceStep(id, start)
        return {
            one.spec.name: TypedArray(one.spec.datatype, control_array(one, step, shape))
            for one in self._controls
        }

    def _answer(self, response: api.InferenceResponse, request: RequestInputs) -> Answer:
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
        return ModelResponse(outputs, response.sent_parameters)

    def _failed(self, message: str) -> ServeError:
        text = f"Failed to process the request(s) for model '{self._name}', message: {message}"
        return ServeError(Reason.BACKEND, text[:_DETAIL_CHARS])


def _configured(model: Model, kind: Any) -> api.ModelConfig:
    """The model's configuration, completed by the model itself before it is deployed.

    Raises:
        RepositoryError: it names no tensors, or batches without inputs; the model contradicts it.
    """
    config = api.ModelConfig(json.loads(model.config_json or "{}"))
    deployed = model.generation >= 0 and model.config_json
    try:
        if hasattr(kind, "auto_complete_config") and not deployed:
            config = kind.auto_complete_config(config) or config
        signature = config.signature()
    except ValueError as error:
        where = f"{model.source}: auto_complete_config"
        place = place_of(error, Path(model.path).parent)
        raise RepositoryError(where, f"{error}{place}", "what config.pbtxt says") from error
    if not (signature.inputs or (signature.outputs and not signature.batched)):
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
