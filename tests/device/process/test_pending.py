"""Questions by line: order within a line, none between lines, limits that count from the head."""

import asyncio
import itertools
import socket
import time
from functools import partial
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from interlace.core.messages import Failure
from interlace.device.process.link import PendingRequest, PendingRequests

LINES = st.sampled_from(["p", "q", "p+"])


def question(heard: list[object], limit_s: float = 60.0, what: str = "work") -> PendingRequest[int]:
    return PendingRequest(heard.append, limit_s, what)


@given(asked=st.lists(LINES, max_size=30), chance=st.randoms(use_true_random=False))
def test_each_answer_is_to_the_oldest_question_of_its_line(
    asked: list[str], chance: Random
) -> None:
    heard: dict[str, list[int]] = {line: [] for line in asked}

    async def play() -> None:
        questions: PendingRequests[int] = PendingRequests(
            asyncio.get_running_loop(), lambda late: None
        )
        for number, line in enumerate(asked):
            told = partial(_note, heard[line], number)
            questions.add(line, PendingRequest(told, 60.0, "work"))
        order = list(asked)
        chance.shuffle(order)
        for line in order[: len(order) // 2]:
            questions.answered(line).answer(0)
        for left in questions.close():
            left.answer(Failure("gone"))

    asyncio.run(play())
    for line, numbers in heard.items():
        assert numbers == [number for number, one in enumerate(asked) if one == line]


def _note(numbers: list[int], number: int, said: object) -> None:
    numbers.append(number)


async def test_the_first_question_that_takes_too_long_is_told_whatever_its_line() -> None:
    late: list[str] = []
    heard: list[object] = []
    questions: PendingRequests[int] = PendingRequests(asyncio.get_running_loop(), late.append)
    questions.add("p", question(heard, 60.0))
    questions.add("q", question(heard, 0.05, "slow work"))
    questions.add("q", question(heard, 0.01, "behind it"))
    async with asyncio.timeout(30.0):
        while not late:  # what waits behind another has not begun
            await asyncio.sleep(0.01)
    questions.close()
    assert late == ["'slow work' took longer than 0.05 s"]


async def test_an_answer_that_a_loop_did_not_come_to_read_is_not_late() -> None:
    late: list[str] = []
    pairs = [socket.socketpair() for _ in range(2)]
    (wake, woken), (answer, answered) = pairs
    loop = asyncio.get_running_loop()
    questions: PendingRequests[int] = PendingRequests(loop, late.append)

    def stand_still() -> None:
        woken.recv(1)
        answer.send(b"!")
        time.sleep(0.2)

    def read() -> None:
        answered.recv(1)
        questions.answered("p")

    loop.add_reader(woken, stand_still)
    loop.add_reader(answered, read)
    questions.add("p", question([], 0.05))
    wake.send(b"!")
    await asyncio.sleep(0.4)
    assert questions.close() == []
    for end in itertools.chain(*pairs):
        end.close()
    assert late == []


async def test_answers_in_time_leave_nothing_to_be_told() -> None:
    late: list[str] = []
    questions: PendingRequests[int] = PendingRequests(asyncio.get_running_loop(), late.append)
    for _ in range(5):
        questions.add("p", question([], 1.0))
        await asyncio.sleep(0.25)
        questions.answered("p")
    questions.forget("p")
    await asyncio.sleep(1.1)
    assert questions.close() == []
    assert late == []
