"""Questions by line: order within a line, none between lines, limits that count from the head."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from interlace.core.messages import Failure
from interlace.device.questions import Question, Questions

LINES = st.sampled_from(["p", "q", "p+"])


def question(heard: list[object], limit_s: float = 60.0, what: str = "work") -> Question[int]:
    return Question(heard.append, limit_s, what)


@given(st.lists(LINES, max_size=30), st.randoms(use_true_random=False))
def test_each_answer_is_to_the_oldest_question_of_its_line(
    asked: list[str], chance: object
) -> None:
    loop = asyncio.new_event_loop()
    questions: Questions[int] = Questions(loop, lambda late: None)
    heard: dict[str, list[object]] = {}
    for number, line in enumerate(asked):
        whole = heard.setdefault(line, [])
        questions.add(
            line, Question(lambda said, n=number, to=whole: to.append((n, said)), 60.0, "")
        )
    order = list(asked)
    chance.shuffle(order)  # type: ignore[attr-defined]
    for said, line in enumerate(order[: len(order) // 2]):
        questions.answered(line).answer(said)
    for left in questions.close():
        left.answer(Failure("gone"))
    for line, answers in heard.items():
        assert [number for number, _ in answers] == [
            n for n, one in enumerate(asked) if one == line
        ]  # type: ignore[misc]
    loop.close()


def test_the_first_question_that_takes_too_long_is_told_whatever_its_line() -> None:
    late: list[str] = []
    heard: list[object] = []

    async def ask() -> None:
        questions: Questions[int] = Questions(asyncio.get_running_loop(), late.append)
        questions.add("p", question(heard, 60.0))
        questions.add("q", question(heard, 0.05, "slow work"))
        questions.add("q", question(heard, 0.01, "behind it"))
        await asyncio.sleep(0.02)
        assert late == []  # what waits behind another has not begun
        await asyncio.sleep(0.08)
        questions.close()

    asyncio.run(ask())
    assert late == ["'slow work' took longer than 0.05 s"]


def test_answers_in_time_leave_nothing_to_be_told() -> None:
    late: list[str] = []

    async def ask() -> None:
        questions: Questions[int] = Questions(asyncio.get_running_loop(), late.append)
        for _ in range(5):
            questions.add("p", question([], 0.05))
            await asyncio.sleep(0.02)
            questions.answered("p")
        questions.forget("p")
        await asyncio.sleep(0.1)
        assert questions.close() == []

    asyncio.run(ask())
    assert late == []
