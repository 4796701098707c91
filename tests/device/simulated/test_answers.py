"""Answers of simulated models: shapes, types, and whose they are."""

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from interlace.core.messages import Run
from interlace.core.model import Model
from interlace.core.request import Batch, Request
from interlace.core.tensor import ITEM_BYTES, Span, Tensor, TensorSpec
from interlace.device.simulated.answers import (
    READ_BYTES,
    AnswerWriter,
    WallTimer,
    filled,
    request_digest,
)
from interlace.formats.arrays import NUMPY_TYPES
from interlace.shm.arena import Arena, ArenaMap
from tests.device.models import model

SIZE = 1 << 20


class Desk:
    """Requests with contents of their own, and what is answered to them."""

    def __init__(self) -> None:
        self.arenas = ArenaMap(os.getpid())
        self.inputs = Arena.create(SIZE)
        self.arenas.add(self.inputs)
        self.writer = AnswerWriter(self.arenas, SIZE)
        self.ids = count(1)

    def tensor(self, name: str, shape: tuple[int, ...], content: bytes) -> Tensor:
        offset = self.inputs.alloc(len(content))
        assert offset is not None
        self.inputs.memory[offset : offset + len(content)] = content
        return Tensor(name, "UINT8", shape, Span(self.inputs.number, offset, len(content)))

    def request(self, *sent: Tensor, rows: int = 1) -> Request:
        return Request(next(self.ids), "m", 0.0, 1e9, rows, inputs=sent)

    def answers(self, known: Model, *asked: Request) -> Sequence[Sequence[Tensor]]:
        """To requests of one batch."""
        batch = Batch(7, "m", asked, sum(one.rows for one in asked))
        found = self.writer.write(Run("gpu0", "p", batch), known)
        assert found is not None
        return found

    def content(self, tensor: Tensor) -> bytes:
        return bytes(self.arenas.view(tensor.span))


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.writer.close()
    made.inputs.close()


def test_every_request_of_a_batch_gets_the_digest_of_its_own_input(desk: Desk) -> None:
    known = model("m", outputs=(TensorSpec("y", "FP32", (40,)), TensorSpec("z", "INT64", ())))
    asked = [desk.request(desk.tensor("x", (2, 1), b"%04d" % n), rows=2) for n in range(30)]
    answers = desk.answers(known, *asked)
    seen = set()
    for request, (y, z) in zip(asked, answers, strict=True):
        digest = request_digest("m", [("x", desk.content(request.inputs[0]))])
        assert (y.shape, z.shape) == ((2, 40), (2,))
        numbers = np.frombuffer(desk.content(y), np.float32)
        assert numbers.tolist() == [digest[i % 32] for i in range(80)]
        assert np.frombuffer(desk.content(z), np.int64).tolist() == list(digest[:2])
        seen.add(digest)
    assert len(seen) == 30


@pytest.mark.parametrize("datatype", [*ITEM_BYTES, "BYTES"])
def test_every_datatype_has_numbers_that_it_can_hold(datatype: str) -> None:
    digest = bytes(range(200, 232))
    content = filled(digest, datatype, 100)
    if datatype == "BYTES":
        assert content == (b"\x40\0\0\0" + digest.hex().encode()) * 100
        return
    assert len(content) == 100 * ITEM_BYTES[datatype]
    values = np.frombuffer(content, NUMPY_TYPES[datatype])
    if datatype == "BF16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    cut = {"INT8": lambda byte: byte >> 1, "BOOL": lambda byte: byte & 1}
    expected = [cut.get(datatype, int)(digest[i % 32]) for i in range(100)]
    assert values.astype(int).tolist() == expected


def test_the_digest_is_of_name_inputs_and_first_bytes() -> None:
    long = b"a" * READ_BYTES
    known = request_digest("m", [("x", long), ("y", b"b")])
    assert request_digest("m", [("y", b"b"), ("x", long)]) == known
    for other in (
        request_digest("n", [("x", long), ("y", b"b")]),
        request_digest("m", [("x", long), ("y", b"c")]),
        request_digest("m", [("x", long + b"z"), ("y", b"b")]),
        request_digest("m", [("x", b"b" + long[1:]), ("y", b"b")]),
    ):
        assert other != known


def test_free_dims_are_the_inputs(desk: Desk) -> None:
    known = model(
        "m",
        inputs=(TensorSpec("x", "UINT8", (-1, -1, 3)),),
        outputs=(TensorSpec("y", "UINT8", (3, -1, -1)), TensorSpec("z", "UINT8", (-1, -1, -1))),
    )
    sent = desk.request(desk.tensor("x", (1, 2, 5, 3), bytes(30)))
    assert [one.shape for one in desk.answers(known, sent)[0]] == [(1, 3, 2, 5), (1, 2, 5, 1)]
    whole = replace(known, signature=replace(known.signature, batched=False, max_batch=1))
    sent = desk.request(desk.tensor("x", (2, 5, 3), bytes(30)))
    assert [one.shape for one in desk.answers(whole, sent)[0]] == [(3, 2, 5), (2, 5, 1)]


def test_only_wanted_outputs_are_written(desk: Desk) -> None:
    known = model("m", outputs=(TensorSpec("y", "FP32", (4,)), TensorSpec("z", "FP32", (4,))))
    sent = desk.request(desk.tensor("x", (1, 1), b"1"))
    wanted = Request(1, "m", 0.0, 1e9, 1, inputs=sent.inputs, outputs=("z",))
    assert [one.name for one in desk.answers(known, wanted)[0]] == ["z"]


def test_a_full_arena_is_told_and_delivered_answers_make_room(desk: Desk) -> None:
    known = model("m", outputs=(TensorSpec("y", "FP32", (SIZE // 8,)),))
    first, second, third = (
        Run("gpu0", "p", Batch(number, "m", (desk.request(desk.tensor("x", (1, 1), b"1")),), 1))
        for number in (1, 2, 3)
    )
    assert desk.writer.write(first, known) is not None
    assert desk.writer.write(second, known) is not None
    assert desk.writer.write(third, known) is None
    desk.writer.free(1)
    desk.writer.free(1)
    assert desk.writer.write(third, known) is not None


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(30.0):
        while not done():
            await asyncio.sleep(0.01)


async def test_no_call_is_early_and_all_come_in_order() -> None:
    seen: list[tuple[float, float]] = []
    timer = WallTimer(asyncio.get_running_loop())
    start_ms = timer.now_ms()
    for step in (31, 7, 30.25, 7.5, 0, -5, 7.25):
        at_ms = start_ms + step
        timer.call_at(at_ms, lambda at_ms=at_ms: seen.append((at_ms, timer.now_ms())))
    assert not seen
    await until(lambda: len(seen) == 7)
    assert [at_ms for at_ms, _ in seen] == sorted(at_ms for at_ms, _ in seen)
    assert all(now_ms >= at_ms for at_ms, now_ms in seen)
    timer.close()
    timer.close()


async def test_equal_times_go_by_order_of_asking_and_calls_may_ask_for_more() -> None:
    seen: list[str] = []
    timer = WallTimer(asyncio.get_running_loop())
    at_ms = timer.now_ms() + 2.0
    for name in "abc":
        timer.call_at(at_ms, lambda name=name: seen.append(name))
    timer.call_at(at_ms, lambda: timer.call_at(timer.now_ms(), lambda: seen.append("d")))
    await until(lambda: "d" in seen)
    assert seen == ["a", "b", "c", "d"]
    timer.close()


async def test_a_call_that_raises_keeps_no_other_from_coming() -> None:
    seen: list[str] = []
    told: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    timer = WallTimer(loop)
    at_ms = timer.now_ms() + 1.0
    timer.call_at(at_ms, lambda: 1 // 0)
    timer.call_at(at_ms, lambda: seen.append("beside"))
    timer.call_at(at_ms + 5.0, lambda: seen.append("later"))
    await until(lambda: "later" in seen)
    assert seen == ["beside", "later"] and isinstance(told[0], ZeroDivisionError)
    timer.close()


async def test_after_its_end_nothing_is_called() -> None:
    seen: list[str] = []
    timer, other = (WallTimer(asyncio.get_running_loop()) for _ in range(2))
    timer.call_at(timer.now_ms() + 5.0, lambda: seen.append("x"))
    timer.close()
    timer.call_at(timer.now_ms(), lambda: seen.append("y"))
    other.call_at(other.now_ms() + 10.0, lambda: seen.append("other"))
    await until(lambda: bool(seen))
    assert seen == ["other"]
    other.close()
