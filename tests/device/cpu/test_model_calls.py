"""Calls of other models by the code in a worker: their tensors, their memory, and deaths."""

from __future__ import annotations

import dataclasses
import math
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from interlace.core.errors import Reason, ServeError
from interlace.core.messages import BatchWaits, CancelRun, Run
from interlace.core.model import Format, Model, ServiceTerms
from interlace.core.request import (
    BlsCall,
    CallContext,
    Outcome,
    PartialResponse,
    Reply,
    Request,
)
from interlace.core.tensor import Signature, TensorSpec
from tests.device.cpu.rig import Rig, python_model, settings

#: Calls "double" so many times as its first value says, each with the output of the one before.
CODE = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(r, "x")) for r in requests]

    def answer(self, tensor):
        for call in range(int(tensor.as_numpy()[0, 0])):
            if call % 2:
                tensor = pb_utils.Tensor("x", tensor.as_numpy())
            request = pb_utils.InferenceRequest(
                model_name="double", inputs=[tensor], requested_output_names=["x"])
            response = request.exec()
            if response.has_error():
                return response
            tensor = response.output_tensors()[0]
        return pb_utils.InferenceResponse([tensor])
"""
#: Decoupled: responds with the output of each call, after execute has returned.
STREAMS = """
import threading
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "x")
            given = request.get_response_sender(), tensor
            threading.Thread(target=self.respond, args=given).start()

    def respond(self, sender, tensor):
        for _ in range(int(tensor.as_numpy()[0, 0])):
            request = pb_utils.InferenceRequest(
                model_name="double", inputs=[tensor], requested_output_names=["x"])
            tensor = request.exec().output_tensors()[0]
            sender.send(pb_utils.InferenceResponse([tensor]))
            if sender.is_cancelled():
                break
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
SPEC = (TensorSpec("x", "FP32", (-1,)),)
SIGNATURE = Signature(SPEC, SPEC, batched=True, max_batch=8)
TERMS = ServiceTerms(slo_ms=1e6)
DOUBLE = Model("double", 1, Format.PYTHON, "", "", SIGNATURE, TERMS)


class Doubling:
    """Serves "double" in the test's own arena; answers at once, or when it is told to."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.calls: list[BlsCall] = []
        self.waiting: list[Callable[[], None]] = []
        self.at_once = True
        self.cancelled = 0
        self.lent: set[int] = set()

    def call(
        self,
        call: BlsCall,
        answer: Callable[[Reply | ServeError], None],
        respond: Callable[[PartialResponse], None] | None = None,
    ) -> Request | None:
        self.calls.append(call)
        request = self.rig.request(DOUBLE, *call.inputs)

        def double() -> None:
            (tensor,) = call.inputs
            made = self.rig.tensor("x", "FP32", self.rig.read(tensor) * 2)
            self.lent.add(made.span.offset)
            answer(Reply(request, Outcome.OK, (made,)))

        if self.at_once:
            double()
        else:
            self.waiting.append(double)
        return request

    def cancel(self, request: Request) -> None:
        self.cancelled += 1

    def delivered(self, reply: Reply) -> None:
        offset = reply.outputs[0].span.offset
        self.lent.remove(offset)
        self.rig.arena.free(offset)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(settings(opener="interlace.formats:open_model", arena_bytes=1 << 20))
    yield made
    made.close()


@pytest.fixture
def caller(tmp_path: Path) -> Model:
    return python_model(tmp_path / "m", CODE, SIGNATURE, TERMS)


@pytest.fixture
def streams(rig: Rig, callees: Doubling, tmp_path: Path) -> Model:
    made = python_model(
        tmp_path / "s", STREAMS, dataclasses.replace(SIGNATURE, decoupled=True), TERMS
    )
    assert rig.load(made).failure is None
    return made


@pytest.fixture
def callees(rig: Rig, caller: Model) -> Doubling:
    made = Doubling(rig)
    rig.device.serve_code(made, lambda changes: None)
    rig.serve(caller)
    return made


def wide(rig: Rig, model: Model, calls: int) -> Request:
    """A request of 64 KiB."""
    array = np.full((1, 1 << 14), calls, np.float32)
    return rig.request(model, rig.tensor("x", "FP32", array))


def test_tensors_go_by_reference_and_memory_is_given_back(
    rig: Rig, callees: Doubling, caller: Model
) -> None:
    before = rig.arena.used_bytes
    request = wide(rig, caller, 60)  # 60 times 64 KiB do not fit the worker's arena of 1 MiB
    finished = rig.run(request)
    assert finished.failure is None
    ((output,),) = finished.outputs
    assert rig.read(output)[0, 0] == np.float32(60 * 2.0**60)
    assert not callees.lent and rig.arena.used_bytes == before + (1 << 16)
    first, second = (call.inputs[0].span.arena for call in callees.calls[:2])
    assert first != rig.arena.number == callees.calls[2].inputs[0].span.arena != second
    assert {call.deadline_ms for call in callees.calls} == {request.deadline_ms}
    assert rig.lost == [BatchWaits(rig.gpu, "p", finished.work.batch.id)]  # type: ignore[union-attr]


def test_others_run_while_a_batch_waits_and_its_model_waits_for_it(
    rig: Rig, callees: Doubling, caller: Model
) -> None:
    callees.at_once = False
    first, second = (rig.batch(wide(rig, caller, calls)) for calls in (1, 0))
    rig.do(first)
    rig.do(second)
    rig.wait(lambda: len(rig.lost) == 2)
    assert not rig.finished[-1].outputs
    callees.waiting.pop()()
    rig.wait(lambda: {one.work for one in rig.finished} >= {first, second})
    assert [one.work for one in rig.finished[-2:]] == [first, second]


def test_a_model_that_is_measured_calls_nothing(rig: Rig, callees: Doubling, caller: Model) -> None:
    finished = rig.run(replace(wide(rig, caller, 1), deadline_ms=math.inf))
    assert finished.failure is not None and "it calls 'double'" in finished.failure.detail
    assert not callees.calls
    assert rig.run(wide(rig, caller, 0)).failure is None


def test_inputs_outlive_a_worker_that_dies_while_it_waits(
    rig: Rig, callees: Doubling, caller: Model
) -> None:
    callees.at_once = False
    batch: Run = rig.batch(wide(rig, caller, 1))
    rig.do(batch)
    rig.wait(lambda: bool(callees.waiting))
    os.kill(rig.device.workers()["p"], signal.SIGKILL)
    rig.wait(lambda: rig.finished[-1].work is batch)
    failure = rig.finished[-1].failure
    assert failure is not None and failure.fatal and callees.cancelled == 1
    callees.waiting.pop()()  # it reads the dead worker's memory
    assert not callees.lent
    arena = callees.calls[0].inputs[0].span.arena
    assert rig.arenas.descriptor(arena) is None


def test_what_cannot_be_called_is_an_error_of_the_response(
    rig: Rig, callees: Doubling, caller: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(
        call: BlsCall, answer: Callable[[Reply | ServeError], None], respond: object
    ) -> None:
        answer(ServeError(Reason.UNKNOWN_MODEL, "no such model"))

    monkeypatch.setattr(callees, "call", refuse)
    (error,) = rig.run(wide(rig, caller, 1)).errors
    assert error == ServeError(Reason.NOT_FOUND, "no such model", retry_after_ms=math.inf)


IMPATIENT = """
import asyncio
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        (tensor,) = requests[0].inputs()
        value = tensor.as_numpy()[0, 0]
        call = pb_utils.InferenceRequest(
            model_name="double", inputs=[tensor], timeout=2**63 - 1 if value == 2 else 100000)
        return [asyncio.run(call.async_exec()) if value == 1 else call.exec()]
"""


@pytest.mark.parametrize("value", [0, 1])
def test_a_call_whose_model_runs_on_is_given_up_at_its_timeout(
    rig: Rig, callees: Doubling, tmp_path: Path, value: int
) -> None:
    callees.at_once = False
    model = python_model(tmp_path / "i", IMPATIENT, SIGNATURE, TERMS)
    assert rig.load(model).failure is None
    finished = rig.run(wide(rig, model, value))
    said = "Request timeout expired: model 'double' had 100 ms and runs still"
    (error,) = finished.errors
    assert error is not None and error.detail == said and callees.cancelled
    rig.free(finished)
    inputs = [rig.arenas.view(call.inputs[0].span)[:4] for call in callees.calls]
    assert rig.run(wide(rig, model, 5)).errors[0]  # it writes elsewhere: the callee reads still
    assert [np.frombuffer(one, np.float32)[0] for one in inputs] == [value]
    for answer in callees.waiting:
        answer()
    callees.waiting.clear()
    callees.at_once = True
    for last in (value, 2):
        assert rig.run(wide(rig, model, last)).errors == ()
    rig.pause()
    assert not callees.lent


def responses(rig: Rig) -> list[PartialResponse]:
    return [event for event in rig.lost if isinstance(event, PartialResponse)]


def stream(rig: Rig, model: Model, calls: int) -> Request:
    return replace(wide(rig, model, calls), streams=True, context=CallContext())


def test_a_decoupled_model_calls_another_between_its_responses(
    rig: Rig, callees: Doubling, streams: Model
) -> None:
    finished = rig.run(stream(rig, streams, 4))
    assert finished.failure is None and finished.errors == ()
    *heard, last = responses(rig)
    assert [rig.read(one.outputs[0])[0, 0] for one in heard] == [8, 16, 32, 64]
    assert last.final and not last.outputs
    assert {call.deadline_ms for call in callees.calls} == {math.inf} and not callees.lent
    for one in (*heard, last):
        one.release()
    rig.device.on_event(lambda event: event.release() if isinstance(event, PartialResponse) else 0)
    assert rig.run(stream(rig, streams, 60)).errors == ()  # 64 KiB each; the arena has 1 MiB


def test_a_cancel_reaches_a_stream_whose_call_is_under_way(
    rig: Rig, callees: Doubling, caller: Model, streams: Model
) -> None:
    callees.at_once = False
    request = stream(rig, streams, 4)
    batch = rig.batch(request)
    rig.do(batch)
    rig.wait(lambda: bool(callees.waiting))
    assert rig.run(wide(rig, caller, 0)).failure is None  # another model runs meanwhile
    rig.device.cancel_run(CancelRun(rig.gpu, "p", request.id))
    callees.waiting.pop()()
    rig.wait(lambda: rig.finished[-1].work is batch)
    assert rig.finished[-1].failure is None and not responses(rig)
    assert len(callees.calls) == 1 and not callees.lent


def test_batches_keep_their_order_while_a_call_waits_for_memory(
    rig: Rig, callees: Doubling, caller: Model, streams: Model
) -> None:
    held = [rig.run(wide(rig, caller, 0)) for _ in range(16)]  # 64 KiB each: the arena is full
    first, second = rig.batch(wide(rig, caller, 1)), rig.batch(stream(rig, streams, 0))
    rig.do(first)
    rig.do(second)
    rig.pause()
    assert rig.finished[-1] is held[-1]
    for one in held:
        rig.free(one)
    rig.wait(lambda: len({one.work for one in rig.finished} & {first, second}) == 2)
    ended = {id(one.work): one for one in rig.finished}
    assert [len(ended[id(one)].outputs[0]) for one in (first, second)] == [1, 0]
