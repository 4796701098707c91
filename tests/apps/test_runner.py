"""Requests of apps: order, deadlines, memory, failures; each is answered exactly once."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.apps.parts import TensorMemory
from interlace.apps.runner import AppRuntime
from interlace.core.errors import Reason, ServeError
from interlace.core.messages import AppEnded
from interlace.core.model import Format, Model, ServiceTerms
from interlace.core.request import (
    Callbacks,
    LaterStage,
    Outcome,
    Reply,
    Request,
    StageOf,
    StageTiming,
    Timing,
)
from interlace.core.tensor import Signature, Span, Tensor, TensorSpec, element_count
from interlace.runtime.clock import SimClock
from interlace.shm.arena import Arena
from tests.apps.test_graph import FIRST, HEAD, SECOND, graph, model, step

TWO = HEAD + 'output [ { name: "BOX" data_type: TYPE_FP32 dims: [ 4 ] } ]\n'
BOXES = step("boxes", {"X": "features"}, {"Y": "BOX"})
JOIN = step("join", {"A": "left", "B": "right"}, {"Y": "CLASS"})
DIAMOND = (
    FIRST,
    step("left", {"X": "features"}, {"Y": "left"}),
    step("right", {"X": "features"}, {"Y": "right"}),
    JOIN,
)
MEMBERS = {
    "first": model("first", {"X": (8,)}, {"Y": (5,), "Z": (3,)}),
    "other": model("other", {"X": (8,)}, {"Y": (5,)}),
    "second": model("second", {"X": (5,)}, {"Y": (2,)}),
    "detect": model("detect", {"X": (8,)}, {"Y": (5,)}, 0),
    "boxes": model("boxes", {"X": (5,)}, {"Y": (4,)}),
    "left": model("left", {"X": (5,)}, {"Y": (5,)}),
    "right": model("right", {"X": (5,)}, {"Y": (5,)}),
    "join": model("join", {"A": (5,), "B": (5,)}, {"Y": (2,)}),
}
ARENA = Arena.create(1 << 20)


class Bytes:
    """Arenas in which each byte is the low part of its offset."""

    def view(self, span: Span) -> memoryview:
        if span.arena == ARENA.number:
            return ARENA.view(span.offset, span.nbytes)
        return memoryview(bytes(at % 251 for at in range(span.offset, span.offset + span.nbytes)))


class Scripted:
    """A runtime whose requests are answered by hand; it counts deliveries."""

    def __init__(self) -> None:
        self.clock = SimClock()
        self.changes = 0
        self.asked: dict[str, list[tuple[Request, Callbacks]]] = {}
        self.cancelled: list[str] = []
        self.delivered_of: Counter[str] = Counter()
        self.refuse: dict[str, ServeError] = {}
        self.ended: list[AppEnded] = []
        self._ids = count(1)
        self._offsets = count(0, 4096)

    def next_id(self) -> int:
        return next(self._ids)

    def submit(self, request: Request, caller: Callbacks) -> None:
        name = next(one for one in MEMBERS if request.model.startswith(one))
        if name in self.refuse:
            caller.on_reply(Reply(request, Outcome.REFUSED, error=self.refuse[name]))
            return
        self.asked.setdefault(name, []).append((request, caller))

    def deliver(self, event: AppEnded) -> None:
        self.ended.append(event)

    def cancel(self, request: Request) -> None:
        asked = ((name, one[0]) for name, every in self.asked.items() for one in every)
        self.cancelled += [name for name, one in asked if one is request]

    def delivered(self, reply: Reply) -> None:
        if reply.batch is not None:
            self.delivered_of[reply.request.model] += 1

    def count_refused(self, model: str, rows: int) -> None:
        """Nothing is counted here."""

    def end(
        self,
        name: str,
        outcome: Outcome = Outcome.OK,
        error: ServeError | None = None,
        share_input: bool = False,
        took_ms: float = 1.0,
        rows: int | None = None,
        changed: Callable[[list[Tensor]], list[Tensor]] = lambda outputs: outputs,
    ) -> Request:
        """Answer a model's first request that waits; ``changed`` is what it gives."""
        request, caller = self.asked[name].pop(0)
        if not self.asked[name]:
            del self.asked[name]
        self.clock.run(self.clock.now_ms() + took_ms)
        outputs = []
        for spec in MEMBERS[name].signature.outputs:
            if request.outputs and spec.name not in request.outputs:
                continue
            shape = (request.rows if rows is None else rows, *spec.dims)
            nbytes = 4 * element_count(shape)
            at = request.inputs[0].span if share_input else Span(1, next(self._offsets), nbytes)
            outputs.append(Tensor(spec.name, spec.datatype, shape, at))
        ok = outcome in (Outcome.OK, Outcome.LATE)
        found = tuple(changed(outputs)) if ok else ()
        timing = Timing(0.0, 0.1, 0.8, 0.1)
        caller.on_reply(Reply(request, outcome, found, error, timing, 7 if ok else None))
        self.clock.run(self.clock.now_ms())
        return request


class Stand:
    """An app over a scripted runtime."""

    def __init__(self, *steps: str, head: str = HEAD, budget: int = 1 << 20) -> None:
        self.below = Scripted()
        self.heard: list[str] = []
        self.replies: list[Reply] = []
        self.gave_up: list[ServeError] = []
        self.members = dict(MEMBERS)
        self.runtime = AppRuntime(
            self.below,  # type: ignore[arg-type]  # what it needs of a runtime
            self.find,
            lambda model, reply, now_ms: self.heard.append(model),
            TensorMemory(ARENA, Bytes()),
            budget,
        )
        self.app = graph(*steps, head=head)
        outputs = [TensorSpec("CLASS", "FP32", (2,))]
        if "BOX" in head:
            outputs.append(TensorSpec("BOX", "FP32", (4,)))
        signature = Signature((TensorSpec("IMAGE", "FP32", (8,)),), tuple(outputs), True, 4)
        self.model = Model("app", 1, Format.ONNX, "/app", "0", signature, ServiceTerms(100.0))
        self.runtime.add(self.app, self.model)

    def find(self, name: str, version: str) -> Model:
        if name not in self.members:
            raise ServeError(Reason.UNKNOWN_MODEL, f"Request for unknown model: '{name}'")
        return self.members[name]

    def send(
        self,
        outputs: tuple[str, ...] = (),
        slo_ms: float = 100.0,
        shape: tuple[int, ...] = (2, 8),
    ) -> Request:
        now_ms = self.below.clock.now_ms()
        image = Tensor("IMAGE", "FP32", shape, Span(0, 0, 64))
        request = Request(
            self.runtime.next_id(),
            self.model.key,
            now_ms,
            now_ms + slo_ms,
            2,
            (),
            0,
            (image,),
            outputs,
        )
        self.runtime.submit(request, Callbacks(self.replies.append, self.gave_up.append))
        return request

    def settle(self) -> None:
        """What the client has received is delivered; nothing may be held then."""
        for reply in self.replies:
            self.runtime.delivered(reply)
        assert self.runtime.held_bytes == 0
        assert ARENA.used_bytes == 0


def test_steps_run_in_order_and_the_last_output_is_the_apps() -> None:
    stand = Stand(FIRST, SECOND)
    stand.send()
    assert list(stand.below.asked) == ["first"]
    first = stand.below.end("first")
    assert first.outputs == ("Y",), "nobody reads Z"
    second = stand.below.end("second")
    assert second.inputs[0].name == "X"
    assert second.inputs[0].shape == (2, 5)
    (reply,) = stand.replies
    assert reply.outcome is Outcome.OK
    assert [(one.name, one.shape) for one in reply.outputs] == [("CLASS", (2, 2))]
    assert reply.timing.infer_ms == pytest.approx(1.6)
    stand.settle()
    assert len(stand.heard) == 2


def test_outputs_are_freed_when_their_last_reader_is_answered() -> None:
    stand = Stand(*DIAMOND)
    stand.send()
    stand.below.end("first")
    key = MEMBERS["first"].key
    assert set(stand.below.asked) == {"left", "right"}
    stand.below.end("left")
    assert stand.below.delivered_of[key] == 0
    stand.below.end("right")
    assert stand.below.delivered_of[key] == 1
    stand.below.end("join")
    assert stand.below.delivered_of[MEMBERS["join"].key] == 0
    stand.settle()
    assert all(stand.below.delivered_of[MEMBERS[name].key] == 1 for name in ("left", "join"))


def test_memory_that_an_output_shares_with_an_input_is_held_as_long() -> None:
    stand = Stand(FIRST, SECOND)
    stand.send()
    stand.below.end("first")
    stand.below.end("second", share_input=True)
    assert stand.below.delivered_of[MEMBERS["first"].key] == 0
    stand.settle()
    assert stand.below.delivered_of[MEMBERS["first"].key] == 1


def test_only_the_steps_that_are_asked_for_run() -> None:
    stand = Stand(FIRST, SECOND, BOXES, head=TWO)
    stand.send(("BOX",))
    stand.below.end("first")
    assert list(stand.below.asked) == ["boxes"]
    stand.below.end("boxes")
    assert [one.name for one in stand.replies[0].outputs] == ["BOX"]
    stand.settle()


def test_a_step_has_the_apps_deadline_less_the_rest() -> None:
    stand = Stand(FIRST, SECOND)
    stand.send()
    assert stand.below.end("first", took_ms=5.0).deadline_ms == 100.0, "nothing is known yet"
    stand.below.end("second", took_ms=20.0)
    request = stand.send()
    assert stand.below.asked["first"][0][0].deadline_ms == pytest.approx(request.deadline_ms - 40.0)
    stand.below.end("first")
    assert stand.below.asked["second"][0][0].deadline_ms == request.deadline_ms


def test_a_refused_first_step_refuses_the_app() -> None:
    stand = Stand(FIRST, SECOND)
    stand.below.refuse["first"] = ServeError(
        Reason.OVERLOADED, "too late", retry_after_ms=5.0, late_ms=2.0
    )
    stand.send()
    (reply,) = stand.replies
    assert reply.outcome is Outcome.REFUSED
    assert reply.error == ServeError(
        Reason.OVERLOADED, "in ensemble 'app', too late", retry_after_ms=5.0, late_ms=2.0
    )
    stand.settle()


def test_a_refused_later_step_is_no_refusal_of_the_app() -> None:
    stand = Stand(FIRST, SECOND)
    stand.below.refuse["second"] = ServeError(Reason.OVERLOADED, "too late")
    stand.send()
    stand.below.end("first")
    assert stand.replies[0].outcome is Outcome.EXPIRED
    stand.settle()
    assert stand.below.delivered_of[MEMBERS["first"].key] == 1


def test_the_engine_hears_which_steps_follow_and_when_none_does_any_more() -> None:
    stand = Stand(*DIAMOND)
    for took_ms in (5.0, 5.0):  # the second time it is known how long steps run
        request = stand.send()
        first = stand.below.end("first", took_ms=took_ms).part
        left, right = (stand.below.end(name, took_ms=took_ms).part for name in ("left", "right"))
        join = stand.below.end("join", took_ms=took_ms).part
    assert first and left and right and join
    assert [stage.model for stage in first.later] == [
        MEMBERS[name].key for name in ("left", "right", "join")
    ]
    left_ms = [request.deadline_ms - stage.deadline_ms for stage in first.later]
    assert left_ms == pytest.approx([10.0, 10.0, 0.0]), "join may wait as long as it runs"
    assert {stage.rows for stage in first.later} == {2}
    assert [len(part.later) for part in (left, right, join)] == [2, 1, 0]
    assert [part.begun for part in (first, left, right, join)] == [False, True, True, True]
    assert not stand.below.ended, "it went to its end"
    broken = stand.send()
    stand.below.end("first", Outcome.FAILED, ServeError(Reason.BACKEND, "no"))
    assert stand.below.ended == [AppEnded(broken.id)]
    stand.settle()


def test_the_engine_forgets_what_follows_where_one_of_two_first_steps_is_refused() -> None:
    stand = Stand(
        step("first", {"X": "IMAGE"}, {"Y": "left"}),
        step("other", {"X": "IMAGE"}, {"Y": "right"}),
        JOIN,
    )
    stand.below.refuse["other"] = ServeError(Reason.OVERLOADED, "too late")
    request = stand.send()
    stand.below.end("first")
    assert stand.below.ended == [AppEnded(request.id)]
    stand.below.refuse["first"] = ServeError(Reason.OVERLOADED, "too late")
    stand.send()
    assert len(stand.below.ended) == 1, "nothing was accepted"
    stand.settle()


def test_a_stall_does_not_keep_all_later_requests_out() -> None:
    stand = Stand(FIRST, SECOND)
    for took_ms in (5.0, 900.0):
        stand.send()
        stand.below.end("first", took_ms=5.0)
        stand.below.end("second", took_ms=took_ms)
    stand.below.refuse["first"] = ServeError(Reason.DEADLINE, "even an idle server", late_ms=9.0)
    for _ in range(100):
        stand.send()
    del stand.below.refuse["first"]
    request = stand.send()
    kept_ms = request.deadline_ms - stand.below.end("first", took_ms=0.0).deadline_ms
    assert 0.0 < kept_ms < 2.0, "until one was let in again"
    stand.below.end("second")
    stand.settle()


def test_a_failed_step_cancels_the_others_and_waits_for_them() -> None:
    stand = Stand(*DIAMOND)
    stand.send()
    stand.below.end("first")
    stand.below.end("left", Outcome.FAILED, ServeError(Reason.BACKEND, "it broke"))
    assert stand.below.cancelled == ["right"]
    assert not stand.replies, "the other still reads its input"
    stand.below.end("right")
    (reply,) = stand.replies
    assert reply.error is not None
    assert reply.error.detail == "in ensemble 'app', it broke"
    assert "join" not in stand.below.asked
    stand.settle()
    assert stand.below.delivered_of[MEMBERS["right"].key] == 1


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda outputs: [], "model 'first' gave no output 'Y'"),
        (
            lambda outputs: [one._replace(datatype="INT32") for one in outputs],
            "tensor 'features' for input 'X' of 'second' is INT32, expected FP32",
        ),
    ],
)
def test_a_model_that_gives_something_else_than_its_config_says_fails_the_app(
    changed: Callable[[list[Tensor]], list[Tensor]], said: str
) -> None:
    stand = Stand(FIRST, SECOND)
    stand.send()
    stand.below.end("first", changed=changed)
    (reply,) = stand.replies
    assert reply.outcome is Outcome.FAILED and reply.error is not None
    assert (reply.error.reason, reply.error.detail) == (
        Reason.BACKEND,
        f"in ensemble 'app', {said}",
    )
    assert not stand.below.asked
    stand.settle()
    assert sum(stand.below.delivered_of.values()) == 1


def test_a_client_that_goes_away_cancels_what_runs() -> None:
    stand = Stand(FIRST, SECOND)
    request = stand.send()
    stand.runtime.cancel(request)
    assert stand.below.cancelled == ["first"]
    stand.below.end("first", Outcome.CANCELLED)
    assert stand.replies[0].outcome is Outcome.CANCELLED
    assert "second" not in stand.below.asked
    stand.settle()


def test_after_the_deadline_no_step_begins() -> None:
    stand = Stand(FIRST, SECOND)
    stand.send(slo_ms=10.0)
    stand.below.end("first", Outcome.LATE, took_ms=30.0)
    assert stand.replies[0].outcome is Outcome.EXPIRED
    stand.settle()


def test_a_member_that_is_gone_fails_the_app() -> None:
    stand = Stand(FIRST, SECOND)
    stand.send()
    del stand.members["second"]
    stand.below.end("first")
    assert stand.replies[0].outcome is Outcome.FAILED
    assert stand.replies[0].error is not None
    assert stand.replies[0].error.reason is Reason.UNKNOWN_MODEL
    stand.settle()


def test_a_step_that_runs_too_long_is_told_once() -> None:
    stand = Stand(FIRST, SECOND)
    stand.send()
    too_long = stand.below.asked["first"][0][1].on_timeout
    assert too_long is not None
    for _ in range(2):
        too_long(ServeError(Reason.DEADLINE, "slow"))
    assert [one.detail for one in stand.gave_up] == ["in ensemble 'app', slow"]
    stand.below.end("first", Outcome.EXPIRED)
    assert len(stand.replies) == 1
    stand.settle()


def test_intermediates_are_bounded() -> None:
    stand = Stand(FIRST, SECOND, budget=39)
    stand.send()
    stand.below.end("first")
    assert stand.runtime.held_bytes == 40
    stand.send()
    assert stand.replies[0].outcome is Outcome.REFUSED
    stand.below.end("second")
    stand.settle()
    stand.send()
    assert "first" in stand.below.asked


def test_requests_of_models_pass() -> None:
    stand = Stand(FIRST, SECOND)
    request = Request(9, MEMBERS["boxes"].key, 0.0, 50.0)
    stand.runtime.submit(request, Callbacks(stand.replies.append))
    stand.below.end("boxes")
    assert stand.replies[0].request is request
    stand.runtime.delivered(stand.replies[0])
    assert stand.below.delivered_of[request.model] == 1


def test_an_app_may_be_a_step_of_another() -> None:
    stand = Stand(FIRST, SECOND)
    outer = graph(
        step("app", {"IMAGE": "IMAGE"}, {"CLASS": "CLASS"}).replace('"app"', '"inner"', 1)
    )
    stand.members["inner"] = stand.model
    signature = stand.model.signature
    whole = Model("outer", 1, Format.ONNX, "/o", "1", signature, ServiceTerms(100.0))
    stand.runtime.add(outer, whole)
    image = Tensor("IMAGE", "FP32", (2, 8), Span(0, 0, 64))
    request = Request(stand.runtime.next_id(), whole.key, 0.0, 100.0, 2, (), 0, (image,))
    stand.runtime.submit(request, Callbacks(stand.replies.append))
    stand.below.end("first")
    stand.below.end("second")
    assert [one.name for one in stand.replies[0].outputs] == ["CLASS"]
    stand.settle()
    assert stand.below.delivered_of[MEMBERS["second"].key] == 1


# A detector without a batch dimension, whose crops are the rows of the next model.
CROPS = """
platform: "ensemble"
input [ { name: "IMAGE" data_type: TYPE_FP32 dims: [ 8 ] } ]
output [ { name: "CLASS" data_type: TYPE_FP32 dims: [ -1, 2 ] } ]
"""
DETECT = step("detect", {"X": "IMAGE"}, {"Y": "features"})


def detector(*steps: str) -> Stand:
    stand = Stand(DETECT, *steps, head=CROPS)
    spec = (TensorSpec("IMAGE", "FP32", (8,)),), (TensorSpec("CLASS", "FP32", (-1, 2)),)
    stand.model = Model(
        "app", 1, Format.ONNX, "/app", "0", Signature(*spec, False, 1), ServiceTerms(100.0)
    )
    stand.runtime.add(stand.app, stand.model)
    return stand


def test_more_rows_than_a_model_takes_are_cut_and_joined() -> None:
    stand = detector(SECOND)
    stand.send(shape=(8,))
    crops = stand.below.end("detect", rows=10)
    parts = [request for request, *_ in stand.below.asked["second"]]
    assert [one.rows for one in parts] == [4, 4, 2]
    assert [one.inputs[0].span.nbytes for one in parts] == [80, 80, 40]
    assert parts[1].inputs[0].span.offset == parts[0].inputs[0].span.offset + 80
    assert crops.rows == 1
    ended = [stand.below.end("second").id for _ in parts]
    assert ended == [one.id for one in parts]
    (reply,) = stand.replies
    (output,) = reply.outputs
    assert output.shape == (10, 2)
    assert output.span == Span(ARENA.number, output.span.offset, 80)
    assert stand.below.delivered_of[MEMBERS["second"].key] == 3, "they were copied"
    stand.settle()


def test_a_part_that_fails_fails_the_app_after_the_others() -> None:
    stand = detector(SECOND)
    stand.send(shape=(8,))
    stand.below.end("detect", rows=10)
    stand.below.end("second")
    stand.below.end("second", Outcome.FAILED, ServeError(Reason.BACKEND, "no"))
    assert stand.below.cancelled == ["second"]
    assert not stand.replies
    stand.below.end("second")
    assert stand.replies[0].outcome is Outcome.FAILED
    stand.settle()
    assert stand.below.delivered_of[MEMBERS["second"].key] == 2


def test_a_step_without_rows_is_not_run() -> None:
    stand = detector(SECOND)
    stand.send(shape=(8,))
    stand.below.end("detect", rows=0)
    assert not stand.below.asked
    assert [one.shape for one in stand.replies[0].outputs] == [(0, 2)]
    stand.settle()


def test_what_needs_an_input_that_is_left_out_is_left_out() -> None:
    head = TWO + 'input [ { name: "HINT" data_type: TYPE_FP32 dims: [ 5 ] optional: true } ]\n'
    boxes = step("boxes", {"X": "HINT"}, {"Y": "BOX"})
    stand = Stand(FIRST, SECOND, boxes, head=head)
    inputs = (*stand.model.signature.inputs, TensorSpec("HINT", "FP32", (5,), optional=True))
    stand.model = replace(stand.model, signature=replace(stand.model.signature, inputs=inputs))
    stand.runtime.add(stand.app, stand.model)
    stand.send()
    assert list(stand.below.asked) == ["first"]
    stand.below.end("first")
    stand.below.end("second")
    assert [one.name for one in stand.replies[0].outputs] == ["CLASS"]
    inner = step("inner", {"IMAGE": "IMAGE"}, {"CLASS": "CLASS", "BOX": "BOX"})
    stand.members["inner"] = stand.model
    whole = replace(stand.model, name="outer")
    stand.runtime.add(graph(inner, head=head), whole)
    image = Tensor("IMAGE", "FP32", (2, 8), Span(0, 0, 64))
    request = Request(stand.runtime.next_id(), whole.key, 0.0, 100.0, 2, (), 0, (image,))
    stand.runtime.submit(request, Callbacks(stand.replies.append))
    stand.below.end("first")
    stand.below.end("second")
    outer = stand.replies.pop(1)
    assert [one.name for one in outer.outputs] == ["CLASS"]
    stand.runtime.delivered(outer)
    stand.send(("BOX",))
    reply = stand.replies[1]
    assert reply.error is not None and reply.error.reason is Reason.BAD_INPUT
    assert "output 'BOX' needs an optional tensor that is not given" in reply.error.detail
    stand.settle()


def test_a_reply_tells_each_stages_wait_run_and_slack() -> None:
    stand = Stand(FIRST, SECOND)
    request = stand.send()
    part = stand.below.end("first", took_ms=5.0).part
    later = (LaterStage(MEMBERS["second"].key, 2, 100.0),)
    assert part == StageOf("first.0", stand.model.key, request.id, 100.0, later)
    stand.below.end("second", took_ms=20.0)
    assert stand.replies[0].stages == (
        StageTiming("first.0", 0.0, 5.0, 95.0),
        StageTiming("second.1", 0.0, 20.0, 75.0),
    )
    stand.settle()


OUTCOMES = st.sampled_from([Outcome.OK, Outcome.OK, Outcome.OK, Outcome.LATE, Outcome.FAILED])


@given(st.lists(st.tuples(st.integers(0, 5), OUTCOMES, st.booleans()), max_size=30), st.data())
def test_whatever_ends_how_every_request_is_answered_once_and_nothing_is_held(
    endings: list[tuple[int, Outcome, bool]], data: st.DataObject
) -> None:
    stand = Stand(*DIAMOND)
    sent = [stand.send()]
    for place, outcome, shared in endings:
        waiting = sorted(stand.below.asked)
        if not waiting:
            break
        if data.draw(st.integers(0, 9)) == 0:
            stand.runtime.cancel(sent[0])
        error = ServeError(Reason.BACKEND, "no") if outcome is Outcome.FAILED else None
        stand.below.end(waiting[place % len(waiting)], outcome, error, shared)
    while stand.below.asked:
        stand.below.end(min(stand.below.asked))
    assert len(stand.replies) == len(sent)
    stand.settle()
    assert max(stand.below.delivered_of.values(), default=0) <= 1
