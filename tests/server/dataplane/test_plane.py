"""The data plane: deadlines, forms, statistics, draining."""

import asyncio
import dataclasses
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

import pytest
from msgspec.structs import replace

from interlace.core.errors import Reason, ServeError
from interlace.core.messages import Failure, Run, Woke, WorkFinished
from interlace.core.model import Format, ServiceTerms
from interlace.core.request import Batch, Callbacks, Outcome, PartialResponse, Reply, Timing
from interlace.core.sequence import SequenceStep, SequenceTerms
from interlace.core.tensor import Span, Tensor, TensorSpec, element_count
from interlace.server.dataplane.call import DecodedRequest, InferenceCall
from interlace.server.dataplane.plane import (
    DEATHS,
    KEPT,
    KEPT_MS,
    WAITED,
    DataPlane,
    ExecutionCounter,
    Quarantine,
    ResponseTimes,
    RunDelay,
    failure,
)
from interlace.server.dataplane.tensor_places import OutputTarget
from interlace.server.dataplane.validation import check
from interlace.server.model_table import ModelTable, ServedModel, StreamStatistics
from tests.server.fakes import FakeRuntime, Memory, model, one_to_one

IN_FLIGHT_MAX = 4


def asked(*outputs: str, **parameters: Any) -> DecodedRequest:
    """What a call says but its tensors."""
    targets = tuple(OutputTarget(name, None) for name in outputs)
    return DecodedRequest("", (), targets, parameters)


class Plane:
    """A data plane over the fake runtime, with what it answered."""

    def __init__(self) -> None:
        self.memory = Memory(1 << 20)
        self.runtime = FakeRuntime()
        self.table = ModelTable()
        self.plane = DataPlane(self.runtime, self.table, self.memory.map, IN_FLIGHT_MAX)
        self.table.publish(ServedModel(one_to_one("ident", slo_ms=100.0)))
        self.replies: list[Reply] = []
        self.errors: list[ServeError] = []

    def call(self, rows: int = 1, name: str = "ident", **more: Any) -> InferenceCall:
        tensor = self.memory.put("INPUT0", "FP32", (rows, 2), bytes(8 * rows))
        decoded = more.pop("decoded", None) or asked(**more.pop("parameters", {}))
        return InferenceCall(name, more.pop("version", ""), "", (tensor,), decoded, **more)

    def infer(self, call: InferenceCall) -> Any:
        return self.plane.infer(call, Callbacks(self.replies.append), self.errors.append)


def on_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Give a test a plane on its loop, and wait until nothing is in flight any more."""

    @wraps(test)
    async def run(**parameters: Any) -> None:
        plane = Plane()
        await test(plane, **parameters)
        await asyncio.wait_for(plane.plane.drained(), 5)
        plane.memory.close()

    signature = inspect.signature(test)
    rest = list(signature.parameters.values())[1:]
    run.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
    return run


@on_loop
async def test_a_call_is_answered_once_and_entered(plane: Plane) -> None:
    request = plane.infer(plane.call(rows=3))
    assert (request.model, request.rows, request.shape) == ("ident/1#0", 3, (("INPUT0", (2,)),))
    statistics = plane.table.resolve("ident").statistics
    assert (statistics.pending, plane.plane.in_flight) == (1, 1)
    await plane.plane.drained()
    assert [reply.request for reply in plane.replies] == [request]
    assert (statistics.pending, statistics.success, statistics.rows, statistics.within_slo) == (
        0,
        1,
        3,
        1,
    )
    assert statistics.outcomes[Outcome.OK] == 1


def test_dims_of_one_name_have_one_size() -> None:
    """Otherwise an operator of the model would fail, with an error that names no input."""
    memory = Memory(1 << 20)
    specs = tuple(
        TensorSpec(name, "FP32", (-1, -1), free_names=("sequence", "")) for name in ("ids", "mask")
    )
    served = ServedModel(model("named", specs, (TensorSpec("y", "FP32", (2,)),)))

    def call(*shapes: tuple[int, ...]) -> InferenceCall:
        tensors = [
            memory.put(spec.name, "FP32", shape, bytes(4 * element_count(shape)))
            for spec, shape in zip(specs, shapes, strict=True)
        ]
        return InferenceCall("named", "", "", tuple(tensors), asked())

    assert check(served, call((2, 5, 3), (2, 5, 4))).rows == 2
    with pytest.raises(ServeError, match="dim 'sequence' is 6, but 5 in input 'ids'") as caught:
        check(served, call((2, 5, 3), (2, 6, 3)))
    assert caught.value.reason is Reason.BAD_INPUT
    memory.close()


@pytest.mark.parametrize(
    ("parameters", "budget_ms", "slo_ms"),
    [
        ({}, None, 100.0),
        ({"slo_ms": 50}, None, 50.0),
        ({"slo_ms": 5000.0}, None, 100.0),
        ({"timeout": 20_000}, None, 20.0),
        ({"timeout": 0}, None, 100.0),
        ({"timeout": 30_000, "slo_ms": 40}, 20.0, 20.0),
        ({}, 1000.0, 100.0),
        ({}, -5.0, -5.0),
    ],
)
@on_loop
async def test_the_tightest_deadline_holds(
    plane: Plane, parameters: dict[str, Any], budget_ms: float | None, slo_ms: float
) -> None:
    request = plane.infer(plane.call(parameters=parameters, budget_ms=budget_ms))
    assert request.deadline_ms - request.arrived_ms == pytest.approx(slo_ms)


def test_code_and_calls_of_models_have_time_where_nobody_set_an_slo() -> None:
    memory = Memory(1 << 20)
    tensor = memory.put("INPUT0", "FP32", (1, 3), bytes(12))

    def slo_ms(form: Format, assumed: bool, endpoint: str) -> float:
        terms = ServiceTerms(100.0, slo_assumed=assumed)
        known = dataclasses.replace(one_to_one("ident"), format=form, terms=terms)
        call = InferenceCall("ident", "", "", (tensor,), asked(), endpoint=endpoint)
        return check(ServedModel(known), call).slo_ms

    assert [slo_ms(Format.ONNX, assumed, "") for assumed in (False, True)] == [100.0, 100.0]
    assert [slo_ms(Format.PYTHON, assumed, "") for assumed in (False, True)] == [100.0, 60_000.0]
    assert [slo_ms(Format.ONNX, assumed, "BLS") for assumed in (False, True)] == [100.0, 60_000.0]
    memory.close()


@pytest.mark.parametrize(
    "parameters",
    [
        {"slo_ms": 0}, {"slo_ms": -1}, {"slo_ms": "5"}, {"slo_ms": True}, {"slo_ms": float("nan")},
        {"timeout": 1.5}, {"timeout": -1}, {"timeout": "x"},
        {"priority": -1}, {"priority": 1.5}, {"priority": "high"},
    ],
)  # fmt: skip
@on_loop
async def test_wrong_parameters_are_refused_and_entered(
    plane: Plane, parameters: dict[str, Any]
) -> None:
    assert plane.infer(plane.call(parameters=parameters)) is None
    assert plane.errors[0].reason is Reason.BAD_INPUT
    assert next(iter(parameters)) in plane.errors[0].detail
    statistics = plane.table.resolve("ident").statistics
    assert (statistics.refusals, statistics.outcomes[Outcome.REFUSED]) == ({"bad_input": 1}, 1)


@on_loop
async def test_priority_comes_from_the_call_or_the_model(plane: Plane) -> None:
    urgent = plane.infer(plane.call(parameters={"priority": 1}))
    usual = plane.infer(plane.call())
    assert (urgent.priority, usual.priority) == (1, 0)


@on_loop
async def test_a_form_is_checked_once_for_each_deployment(plane: Plane) -> None:
    form = asked()
    first = plane.infer(plane.call(decoded=form))
    found = form.checked
    plane.infer(plane.call(decoded=form))
    assert form.checked is found
    plane.table.publish(ServedModel(one_to_one("ident", generation=1, slo_ms=7.0)))
    again = plane.infer(plane.call(decoded=form))
    assert (first.model, again.model) == ("ident/1#0", "ident/1#1")
    assert again.deadline_ms - again.arrived_ms == pytest.approx(7.0)


@on_loop
async def test_inputs_are_put_in_the_order_of_the_signature(plane: Plane) -> None:
    specs = [TensorSpec(n, "UINT8", (-1,), optional=n == "b") for n in ("a", "b", "c")]
    plane.table.publish(ServedModel(model("three", specs, [TensorSpec("y", "UINT8", (-1,))])))
    given = [plane.memory.put(n, "UINT8", (1, 1), b"x") for n in ("c", "a")]
    request = plane.infer(InferenceCall("three", "", "", tuple(given), asked("y")))
    assert [t.name for t in request.inputs] == ["a", "c"]
    assert request.outputs == ("y",)
    twice = (given[0], given[0], given[1])
    assert plane.infer(InferenceCall("three", "", "", twice, asked())) is None
    assert "given twice" in plane.errors[-1].detail
    assert plane.infer(InferenceCall("three", "", "", (), asked())) is None
    tritons = "between 2 and 3 but got 0 inputs for model 'three'. Got input(s) [], but missing "
    assert tritons + "required input(s) ['a','c']" in plane.errors[-1].detail
    rows = plane.memory.put("c", "UINT8", (2, 1), b"xy")
    assert plane.infer(InferenceCall("three", "", "", (given[1], rows), asked())) is None
    assert "batch size does not match other inputs for 'three'" in plane.errors[-1].detail


@on_loop
async def test_bool_bytes_are_looked_at_in_every_call(plane: Plane) -> None:
    plane.table.publish(ServedModel(one_to_one("flags", "BOOL")))
    form = asked()
    for data, fine in ((b"\0\1", True), (b"\0\2", False)):
        tensor = plane.memory.put("INPUT0", "BOOL", (1, 2), data)
        request = plane.infer(InferenceCall("flags", "", "", (tensor,), form))
        assert (request is not None) is fine


@on_loop
async def test_draining_refuses_and_waits(plane: Plane) -> None:
    plane.runtime.hold = True
    plane.infer(plane.call())
    plane.plane.stop_accepting()
    assert plane.infer(plane.call()) is None
    assert plane.errors[0].reason is Reason.NOT_READY
    drained = asyncio.ensure_future(plane.plane.drained())
    await asyncio.sleep(0)
    assert not drained.done()
    plane.runtime.release()
    await asyncio.wait_for(drained, 5)
    assert len(plane.replies) == 1


@on_loop
async def test_requests_in_flight_are_bounded(plane: Plane) -> None:
    plane.runtime.hold = True
    for _ in range(IN_FLIGHT_MAX + 1):
        plane.infer(plane.call())
    (error,) = plane.errors
    assert (error.reason, error.retry_after_ms) == (Reason.OVERLOADED, 100.0)
    assert error.detail.startswith("Exceeds maximum queue size")
    plane.runtime.release()
    assert plane.plane.in_flight == 0


@on_loop
async def test_executions_are_entered_by_an_observer(plane: Plane) -> None:
    observer = ExecutionCounter(plane.table)
    batch = Batch(1, "ident/1#0", (), 4)
    done = WorkFinished(Run("g", "p", batch), timing=Timing(0, 1.0, 2.0, 3.0))
    for event in (done, done, replace(done, failure=Failure("x")), Woke()):
        observer(0.0, event, ())
    observer(0.0, replace(done, work=Run("g", "p", Batch(2, "gone/1#0", (), 1))), ())
    statistics = plane.table.resolve("ident").statistics
    assert (statistics.executions, statistics.batches) == (2, {4: (2, 2.0, 4.0, 6.0)})


def test_failures_have_reasons() -> None:
    def reply(outcome: Outcome, error: ServeError | None = None) -> Reply:
        return Reply(None, outcome, error=error)  # type: ignore[arg-type]

    assert failure(reply(Outcome.OK)) is failure(reply(Outcome.LATE)) is None
    given = ServeError(Reason.QUARANTINED, "x")
    assert failure(reply(Outcome.FAILED, given)) is given
    reasons = {
        outcome: found.reason
        for outcome in (Outcome.CANCELLED, Outcome.FAILED, Outcome.EXPIRED)
        if (found := failure(reply(outcome))) is not None
    }
    assert list(reasons.values()) == [Reason.CANCELLED, Reason.BACKEND, Reason.DEADLINE]


def test_the_newest_version_is_found_and_reload_keeps_the_ledger() -> None:
    table = ModelTable()
    for version in (2, 10, 9):
        table.publish(ServedModel(one_to_one("m", version=version)))
    assert (table.resolve("m").model.version, table.versions("m")) == (10, ["2", "9", "10"])
    before = table.resolve("m").statistics
    table.publish(ServedModel(one_to_one("m", version=10, generation=1)))
    assert table.resolve("m").key == "m/10#1"
    assert table.resolve("m").statistics is before is table.statistics("m/10#0")
    table.withdraw("m/10#0")
    assert table.resolve("m").key == "m/10#1"
    table.withdraw("m/10#1")
    assert table.resolve("m").model.version == 9
    for key in ("m/9#0", "m/2#0"):
        table.withdraw(key)
    with pytest.raises(ServeError, match="'m' is not found"):
        table.resolve("m")


MEMORY = bytearray(1 << 22)


def _view(span: Span) -> memoryview:
    return memoryview(MEMORY)[span.offset : span.offset + span.nbytes]


def _inputs(value: int, offset: int = 0, nbytes: int = 64) -> tuple[Tensor, ...]:
    MEMORY[offset : offset + nbytes] = value.to_bytes(4, "little") * (nbytes // 4)
    return (Tensor("x", "UINT8", (nbytes,), Span(1, offset, nbytes)),)


def _refused(one: Quarantine, inputs: tuple[Tensor, ...], now_ms: float = 0.0) -> bool:
    try:
        one.check("m/1#0", inputs, now_ms)
    except ServeError as error:
        assert error.reason is Reason.BACKEND and error.retry_after_ms is not None
        return True
    return False


def test_the_same_bytes_anywhere_are_refused_after_two_deaths_until_it_is_over() -> None:
    one = Quarantine(_view)
    assert not one.suspects("m/1#0")
    one.died("m/1#0", _inputs(7), 1, 0.0)
    assert one.suspects("m/1#0") and not one.suspects("m/1#1"), "a reload is another deployment"
    assert not _refused(one, _inputs(7))
    one.died("m/1#0", _inputs(7, 4096), DEATHS - 1, 10.0)
    assert _refused(one, _inputs(7, 128)) and not _refused(one, _inputs(8))
    assert not _refused(one, _inputs(7, nbytes=32)), "another shape is another request"
    assert _refused(one, _inputs(7), KEPT_MS)
    assert not _refused(one, _inputs(7), 10.0 + KEPT_MS) and not one.suspects("m/1#0")


@pytest.mark.parametrize("at", [0, (3 << 20) - 1])
def test_large_inputs_are_told_apart_by_their_ends(at: int) -> None:
    one = Quarantine(_view)
    large = _inputs(7, nbytes=3 << 20)
    one.died("m/1#0", large, DEATHS, 0.0)
    assert _refused(one, large)
    MEMORY[at] ^= 1
    assert not _refused(one, large)


def test_what_is_remembered_is_bounded() -> None:
    one = Quarantine(_view)
    for value in range(KEPT + 10):
        one.died("m/1#0", _inputs(value), DEATHS, 0.0)
    refused = sum(_refused(one, _inputs(value)) for value in range(KEPT + 10))
    assert refused == KEPT


async def test_the_wait_counts_from_the_deadline_up_to_a_part_of_it() -> None:
    runtime, table, memory = FakeRuntime(), ModelTable(), Memory()
    runtime.hold = True
    table.publish(ServedModel(one_to_one("m", slo_ms=1000.0)))
    before_ms = []
    for waited_ms in (0.0, 30.0, 5000.0):
        plane = DataPlane(
            runtime, table, memory.map, waited_ms=lambda waited_ms=waited_ms: waited_ms
        )
        tensor = memory.put("INPUT0", "FP32", (1, 1), bytes(4))
        now_ms = runtime.clock.now_ms()
        request = plane.infer(
            InferenceCall("m", "", "", (tensor,), asked()),
            Callbacks(lambda _: None),
            lambda _: None,
        )
        assert request is not None
        assert request.deadline_ms - request.arrived_ms == 1000.0
        before_ms.append(now_ms - request.arrived_ms)
    memory.close()
    none, some, capped = before_ms
    assert none <= 0.0
    assert 30.0 - 10.0 < some <= 30.0
    assert capped <= WAITED * 1000.0


def test_a_busy_core_is_seen_and_no_descriptor_is_left() -> None:
    open_before, cores = len(os.listdir("/proc/self/fd")), os.sched_getaffinity(0)
    core = min(cores)

    async def waited_ms() -> float:
        wait, total_ms = RunDelay(asyncio.get_running_loop()), 0.0
        for _ in range(4000):
            total_ms += wait.ms()
            if total_ms > 1.0:
                break
            await asyncio.sleep(0.005)
        wait.close()
        return total_ms

    spin = f"import os; os.sched_setaffinity(0, [{core}])\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", spin]) as busy:
        try:
            os.sched_setaffinity(0, [core])
            assert asyncio.run(waited_ms()) > 1.0
        finally:
            os.sched_setaffinity(0, cores)
            busy.kill()
    assert len(os.listdir("/proc/self/fd")) <= open_before


def test_waits_of_a_pause_are_not_those_of_the_next_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.new_event_loop()
    wait, totals_ms = RunDelay(loop), iter((5, 105, 106))
    monkeypatch.setattr(os, "pread", lambda *_: f"0 {next(totals_ms) * 1_000_000} 0".encode())
    assert wait.ms() == 0.0
    assert wait.all_ms() == 100.0  # by the timer
    assert wait.ms() == 1.0
    wait.close()
    loop.close()


def test_a_model_that_this_node_is_not_told_to_serve_is_not_unknown() -> None:
    table = ModelTable()
    table.at_hand = {"m"}
    for name, reason in (("m", Reason.NOT_READY), ("other", Reason.UNKNOWN_MODEL)):
        with pytest.raises(ServeError) as found:
            table.resolve(name)
        assert found.value.reason is reason


PROMISED = ServiceTerms(5_000.0, first_response_ms=50.0, gap_ms=10.0)


@on_loop
async def test_the_first_response_of_a_stream_sets_its_deadline(plane: Plane) -> None:
    plain = dataclasses.replace(one_to_one("words"), terms=PROMISED)
    signature = dataclasses.replace(plain.signature, decoupled=True)
    plane.table.publish(ServedModel(dataclasses.replace(plain, signature=signature)))
    plane.infer(plane.call(name="words", endpoint="ModelInfer RPC"))
    (error,) = plane.errors
    text = "ModelInfer RPC doesn't support models with decoupled transaction policy"
    assert error == ServeError(Reason.UNSUPPORTED, text)

    heard: list[PartialResponse] = []
    plane.runtime.hold = True
    for rest_ms in (0.0, 200.0):
        plane.table.resolve("words").statistics.streams.rest_ms = rest_ms
        call = plane.call(name="words")
        caller = Callbacks(plane.replies.append, None, heard.append)
        request = plane.plane.infer(call, caller, plane.errors.append)
        assert request is not None and request.streams
        assert request.deadline_ms - request.arrived_ms == pytest.approx(50.0 + rest_ms)
    plane.runtime.release()


def test_times_of_responses_are_held_against_their_promises() -> None:
    statistics, passed = StreamStatistics(), list[PartialResponse]()
    clock = iter((59.0, 65.0, 80.0, 82.0))
    times = ResponseTimes(statistics, PROMISED, 10.0, lambda: next(clock), passed.append)
    output = Tensor("y", "FP32", (1,), Span(0, 0, 4))
    for last in (False, False, False, True):
        times(PartialResponse(1, () if last else (output,), None, last, lambda: None))
    first, gap = statistics.first, statistics.gap
    assert (first.within, first.missed, gap.within, gap.missed) == (1, 0, 1, 1)
    assert gap.durations.sum_us == 21_000.0 and statistics.rest_ms == 23.0
    assert len(passed) == 4


@pytest.mark.parametrize(
    ("parameters", "rows", "found"),
    [
        ({}, 1, "must specify a non-zero or non-empty correlation ID"),
        ({"sequence_id": 0}, 1, "must specify a non-zero or non-empty correlation ID"),
        ({"sequence_id": "a" * 129}, 1, "longer than 128"),
        ({"sequence_id": 1 << 64}, 1, "below 2^64"),
        (
            {"sequence_id": 1},
            2,
            "must specify batch-size 1 due to requirements of sequence batcher",
        ),
        ({"sequence_id": 1, "sequence_end": 1}, 1, "must be booleans"),
        ({"sequence_id": "a", "sequence_end": True}, 1, SequenceStep("a", False, True)),
        ({"sequence_id": 7, "sequence_start": True}, 1, SequenceStep(7, True, False)),
    ],
)
def test_the_place_in_a_sequence_is_checked(
    parameters: dict[str, Any], rows: int, found: str | SequenceStep
) -> None:
    plain = one_to_one("sums", dims=(2,))
    served = ServedModel(dataclasses.replace(plain, sequences=SequenceTerms(1_000.0, 0)))
    tensor = Tensor("INPUT0", "FP32", (rows, 2), Span(0, 0, 8 * rows))
    call = InferenceCall("sums", "", "", (tensor,), asked(**parameters))
    if isinstance(found, SequenceStep):
        assert check(served, call).sequence == found
    else:
        with pytest.raises(ServeError, match=re.escape(found)) as error:
            check(served, call)
        triton = found.startswith("must specify")  # where Triton's text names no request
        assert error.value.detail.startswith("[request id: <id_unknown>] ") != triton
