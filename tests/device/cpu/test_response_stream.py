"""Responses before the end of a batch: in order, by reference, held until they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from interlace.core.errors import Reason
from interlace.core.messages import CancelRun, WorkFinished
from interlace.core.model import ServiceTerms
from interlace.core.request import CallContext, PartialResponse, Request
from interlace.core.tensor import Signature, TensorSpec
from tests.device.cpu.rig import Rig, python_model, settings

CODE = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            count, size = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()[0].astype(int)
            sender = request.get_response_sender()
            for number in range(count):
                y = pb_utils.Tensor("y", np.full(size, number, np.float32))
                sender.send(pb_utils.InferenceResponse([y]))
                if sender.is_cancelled():
                    break
                time.sleep(0.01 if count > 1000 else 0)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
SIGNATURE = Signature(
    (TensorSpec("x", "FP32", (1, 2)),), (TensorSpec("y", "FP32", (-1,)),), False, 1, decoupled=True
)
MIB = (1 << 20) // 4  #: floats


class Streams(Rig):
    """A rig with one decoupled model, and the responses of its requests."""

    def __init__(self, folder: Path) -> None:
        opener = "interlace.formats:open_model"
        super().__init__(settings(folder / "weights", opener=opener, patience_s=0.5))
        self.heard: list[PartialResponse] = []
        self.hear(self.heard.append)
        self.model = python_model(folder / "m", CODE, SIGNATURE, ServiceTerms(100.0))
        self.serve(self.model)

    def hear(self, respond: Callable[[PartialResponse], None]) -> None:
        """Take responses; that a batch waits is of no interest here."""
        self.device.on_event(lambda one: respond(one) if isinstance(one, PartialResponse) else None)

    def ask(self, count: int, size: int) -> Request:
        x = self.tensor("x", "FP32", np.array([[count, size]], np.float32))
        number = next(self._ids)
        context = CallContext(f"r{number}")
        return Request(number, self.model.key, 0.0, 1e9, 1, (), 0, (x,), (), context, True)

    def firsts(self, request: Request) -> list[float]:
        """The first value of each response so far."""
        found = [one for one in self.heard if one.request_id == request.id]
        return [float(self.read(one.outputs[0])[0]) for one in found if one.outputs]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streams]:
    made = Streams(tmp_path_factory.mktemp("streams"))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def forget(rig: Streams) -> None:
    rig.heard.clear()


def error_of(finished: WorkFinished) -> str:
    assert finished.failure is None
    (error,) = finished.errors
    assert error is not None and error.reason is Reason.BACKEND
    return error.detail


def test_responses_lie_side_by_side_until_they_are_released(rig: Streams) -> None:
    request = rig.ask(20, 1000)
    assert rig.run(request).failure is None
    assert rig.firsts(request) == list(range(20))
    assert [one.final for one in rig.heard] == [False] * 20 + [True]
    for one in rig.heard:
        one.release()


def test_what_is_not_released_stops_the_model_and_then_its_stream(rig: Streams) -> None:
    for count, size, said in ((40, 1, "32 responses and reads none"), (30, 3 * MIB, "no room for")):
        request = rig.ask(count, size)
        assert said in error_of(rig.run(request))
        assert rig.firsts(request) == list(range(len(rig.heard)))
        for one in rig.heard:
            one.release()
        rig.heard.clear()


def test_memory_comes_back_as_responses_are_released(rig: Streams) -> None:
    request = rig.ask(100, MIB)  # the arena holds 64 MiB
    seen: list[float] = []

    def heard(response: PartialResponse) -> None:
        seen.extend(float(rig.read(one)[0]) for one in response.outputs)
        response.release()

    rig.hear(heard)
    try:
        finished = rig.run(request)
    finally:
        rig.hear(rig.heard.append)
    assert finished.failure is None and seen == list(range(100))


def test_a_cancelled_request_ends_soon_and_sends_no_more(rig: Streams) -> None:
    request = rig.ask(5000, 1)
    work = rig.batch(request)
    rig.do(work)
    rig.wait(lambda: len(rig.heard) > 2)
    rig.device.cancel_run(CancelRun(rig.gpu, "p", request.id))
    rig.wait(lambda: any(one.work is work for one in rig.finished))
    assert len(rig.heard) < 32 and not rig.heard[-1].final
    for one in rig.heard:
        one.release()
