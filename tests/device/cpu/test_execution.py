"""What a batch goes through: bytes in place, gathered, cut and put where replies find them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.errors import ServeError
from interlace.core.messages import Run
from interlace.core.model import Format
from interlace.core.request import Batch, Request
from interlace.core.tensor import Signature, Span, TensorSpec
from interlace.device.cpu.execution import pack_strings, unpack_strings
from interlace.device.cpu.resident import ResidentModel
from tests.device.cpu.conftest import MakeRig
from tests.device.cpu.rig import GPU, WAIT_S, Rig, refusal
from tests.device.models import model, tensor
from tests.formats.making import a_model

NAMES = ("double", "identity", "reverse", "both", "upper", "tail", "fail", "leave", "one-row")
STRINGS = (TensorSpec("x", "BYTES", (-1,)),)
KNOWN = {
    **{name: model(name) for name in (*NAMES, "nameless", "tables", "wide", "writes")},
    "both": model(
        "both",
        inputs=(tensor("x"), tensor("z")),
        outputs=(tensor("y"), tensor("same"), tensor("sum")),
    ),
    "upper": model("upper", inputs=STRINGS, outputs=(TensorSpec("y", "BYTES", (-1,)),)),
    "tail": model("tail", batched=False),
}


@pytest.fixture(scope="module")
def ready(rig: Rig) -> Iterator[Rig]:
    """A partition in which every model of this module is loaded."""
    rig.carve()
    for known in KNOWN.values():
        assert rig.load(known).failure is None
    yield rig
    rig.release()


def test_the_output_of_identity_is_the_input(ready: Rig) -> None:
    request = ready.floats(KNOWN["identity"], [1, 2, 3])
    finished = ready.run(request)
    assert finished.outputs[0][0].span == request.inputs[0].span
    ready.free(finished)  # holds nothing: passes


def test_the_output_of_a_batched_identity_is_where_it_was_gathered(ready: Rig) -> None:
    requests = [ready.floats(KNOWN["identity"], [n, n]) for n in range(3)]
    finished = ready.run(*requests)
    assert ready.values(finished) == [[[n, n]] for n in range(3)]
    spans = [outputs[0].span for outputs in finished.outputs]
    assert spans[0].arena != ready.arena.number
    assert spans[1].offset == spans[0].offset + 8
    ready.free(finished)


def test_a_view_that_is_not_in_order_is_copied(ready: Rig) -> None:
    finished = ready.run(ready.floats(KNOWN["reverse"], [1, 2, 3]))
    assert ready.values(finished) == [[[3, 2, 1]]]
    assert finished.outputs[0][0].span.arena != ready.arena.number
    ready.free(finished)


def test_a_part_of_the_input_is_pointed_at(ready: Rig) -> None:
    request = ready.floats(KNOWN["tail"], [1, 2, 3, 4])
    finished = ready.run(request)
    number, offset, nbytes = request.inputs[0].span
    assert finished.outputs[0][0].span == Span(number, offset + 4, nbytes - 4)
    assert finished.outputs[0][0].shape == (3,)


def test_several_inputs_and_outputs_in_any_order(ready: Rig) -> None:
    requests = []
    for n in range(4):
        x = ready.tensor("x", "FP32", np.full((1, 3), n, np.float32))
        z = ready.tensor("z", "FP32", np.full((1, 3), 10, np.float32))
        requests.append(ready.request(KNOWN["both"], *((x, z) if n % 2 else (z, x))))
    finished = ready.run(*requests)
    for n, outputs in enumerate(finished.outputs):
        assert [output.name for output in outputs] == ["y", "same", "sum"]
        values = [ready.read(output).tolist() for output in outputs]
        assert values == [[[n + 10] * 3], [[10] * 3], [[3 * n]]]
    ready.free(finished)


def test_only_wanted_outputs_come_and_in_the_order_wanted(ready: Rig) -> None:
    def ask(*outputs: str) -> Request:
        x = ready.tensor("x", "FP32", np.ones((1, 2), np.float32))
        z = ready.tensor("z", "FP32", np.ones((1, 2), np.float32))
        return ready.request(KNOWN["both"], x, z, outputs=outputs)

    for wanted in ((("sum",), ("sum", "y")), ((), ("same",)), (("same", "y"),)):
        finished = ready.run(*[ask(*names) for names in wanted])
        found = [tuple(output.name for output in outputs) for outputs in finished.outputs]
        assert found == [names or ("y", "same", "sum") for names in wanted]
        ready.free(finished)


def test_strings_go_in_and_out(ready: Rig) -> None:
    words = [[b"a", b""], ["ü".encode(), b"long" * 100], [b"x", b"y"]]
    requests = []
    for row in words:
        array = np.empty((1, 2), object)
        array[0] = row
        requests.append(ready.request(KNOWN["upper"], ready.tensor("x", "BYTES", array)))
    for batch in (requests, requests[:1]):
        finished = ready.run(*batch)
        expected = [[[word.upper() for word in row]] for row in words[: len(batch)]]
        assert ready.values(finished) == expected
        ready.free(finished)


def test_broken_strings_fail_their_batch(ready: Rig) -> None:
    good = ready.tensor("x", "BYTES", np.array([[b"abc"]], object))
    for nbytes, words in ((6, "ends within an element"), (2, "ends within a length")):
        short = good._replace(span=good.span._replace(nbytes=nbytes))
        failure = ready.run(ready.request(KNOWN["upper"], short)).failure
        assert failure is not None and failure.bad_input and words in failure.detail
    two = good._replace(shape=(1, 2))
    assert "has 1 elements, its shape [1, 2] needs 2" in refusal(
        ready.run(ready.request(KNOWN["upper"], two))
    )


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_bytes_that_lie_askew_are_straightened(ready: Rig, at: int) -> None:
    array = np.array([[1, 2]], np.float32)
    request = ready.request(KNOWN["double"], ready.tensor("x", "FP32", array, at))
    finished = ready.run(request)
    assert ready.values(finished) == [[[2, 4]]]
    ready.free(finished)


def test_inputs_cannot_be_written(ready: Rig) -> None:
    request = ready.floats(KNOWN["writes"], [1, 2])
    finished = ready.run(request)
    assert finished.failure is not None and "read-only" in finished.failure.detail
    assert ready.read(request.inputs[0]).tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fail", "KeyError: 'no such word'"),
        ("leave", "SystemExit: done"),
        ("one-row", "output 'y' has shape [1, 2], expected 2 rows first"),
        ("nameless", "no output 'y' among ['other']"),
    ],
)
def test_what_a_model_does_wrong_fails_its_batch_alone(ready: Rig, name: str, words: str) -> None:
    finished = ready.run(ready.floats(KNOWN[name], [1, 2], [3, 4]))
    assert finished.failure is not None and not finished.failure.fatal
    assert f"model {name}/1#0 failed on batch" in finished.failure.detail
    assert words in finished.failure.detail
    assert finished.outputs == ()
    assert ready.values(ready.run(ready.floats(KNOWN["double"], [1]))) == [[[2]]]


def test_an_index_beyond_a_models_table_is_its_clients_fault(ready: Rig) -> None:
    failure = ready.run(ready.floats(KNOWN["tables"], [3, 10])).failure
    assert failure is not None and failure.bad_input and not failure.fatal
    assert "'tables' cannot use these values: index 10 is out of bounds" in failure.detail
    assert ready.values(ready.run(ready.floats(KNOWN["tables"], [3]))) == [[[3]]]


def test_sizes_that_contradict_the_shape_fail_the_batch(ready: Rig) -> None:
    request = ready.floats(KNOWN["double"], [1, 2])
    wrong = request.inputs[0]._replace(shape=(1, 3))
    assert "needs 12 bytes, the requests brought 8" in refusal(
        ready.run(ready.request(KNOWN["double"], wrong))
    )
    outside = wrong._replace(span=wrong.span._replace(offset=1 << 40))
    failure = ready.run(ready.request(KNOWN["double"], outside)).failure
    assert failure is not None
    gone = wrong._replace(shape=(1, 2), span=wrong.span._replace(arena=12345 << 16))
    assert "is gone" in refusal(ready.run(ready.request(KNOWN["double"], gone)))


def test_requests_of_other_inputs_do_not_share_a_batch(ready: Rig) -> None:
    other = ready.request(KNOWN["double"], ready.tensor("w", "FP32", np.ones((1, 1), np.float32)))
    assert "has no input 'x'" in refusal(ready.run(ready.floats(KNOWN["double"], [1]), other))


def test_an_empty_batch_and_an_unbatched_model(ready: Rig) -> None:
    empty = Run(GPU, "p", Batch(1, KNOWN["double"].key, (), 0))
    assert "holds no request" in refusal(ready.end_of(empty))
    tail = KNOWN["tail"]
    assert "takes one at a time" in refusal(
        ready.run(ready.floats(tail, [1, 2]), ready.floats(tail, [1, 2]))
    )


@pytest.mark.parametrize("rows", [1, 3])
def test_empty_tensors_pass(ready: Rig, rows: int) -> None:
    requests = []
    for _ in range(rows):
        array = np.zeros((1, 0), np.float32)
        requests.append(ready.request(KNOWN["double"], ready.tensor("x", "FP32", array)))
    finished = ready.run(*requests)
    assert [outputs[0].shape for outputs in finished.outputs] == [(1, 0)] * rows
    ready.free(finished)


def test_a_batch_that_can_never_fit_fails_at_once(make_rig: MakeRig) -> None:
    rig = make_rig(arena_bytes=1 << 21, patience_s=WAIT_S)
    rig.serve(KNOWN["wide"])
    assert "does not fit the worker's arena" in refusal(rig.run(rig.floats(KNOWN["wide"], [1])))


ROWS = st.lists(st.lists(st.binary(max_size=20), min_size=2, max_size=2), max_size=5)


@given(ROWS, st.integers(0, 5))
def test_packing_and_unpacking_are_inverse(rows: list[list[bytes]], cut: int) -> None:
    array = np.empty((len(rows), 2), object)
    for place, row in enumerate(rows):
        array[place] = row
    parts = [memoryview(pack_strings(part)) for part in (array[:cut], array[cut:])]
    assert unpack_strings(parts, array.shape, "x").tolist() == array.tolist()


@given(st.binary(max_size=30))
def test_any_bytes_unpack_or_are_refused(data: bytes) -> None:
    try:
        array = unpack_strings([memoryview(data)], (1,), "x")
    except ServeError as error:
        assert "BYTES input 'x'" in str(error)
    else:
        assert array.shape == (1,)


SPEC = TensorSpec("x", "FP32", (2,))


class Runner:
    def __init__(self, broken: bool) -> None:
        self.broken, self.ran = broken, 0

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        self.ran += 1
        if self.broken:
            raise RuntimeError("it never runs")
        return dict(inputs)


@pytest.mark.parametrize("broken", [True, False])
def test_a_model_that_no_request_ran_is_tried_once(broken: bool) -> None:
    """So that a bad first request is its client's fault where the model is well."""
    signature = Signature((SPEC,), (SPEC,), True, 4)
    model, runner = a_model(Format.ONNX, Path("none"), signature), Runner(broken)
    resident = ResidentModel(model, runner, signature, 0)  # type: ignore[arg-type]
    assert [resident.runs(), resident.runs()] == [not broken] * 2
    assert runner.ran == 1
    resident.answered = True  # by a client's request
    assert resident.runs()
