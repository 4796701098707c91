"""The same calls to Interlace and to the real tritonserver: every difference has its reason."""

import re

import pytest

from .differences import ALLOWED, REASONS, SHOWN, differing, named, page
from .grpc_cases import grpc_cases
from .http_cases import http_cases
from .oracle import everything, recorded
from .pages import PAGE
from .record import Answers, Start

CASES = [f"http:{case.name}" for case in http_cases()]
CASES += [f"grpc:{case.name}" for case in grpc_cases()]


@pytest.fixture(scope="module")
def triton() -> Answers:
    return recorded()


@pytest.fixture(scope="module")
def answers(start_ours: Start) -> Answers:
    return everything(start_ours)


def test_the_recording_is_what_the_real_server_says(start_triton: Start, triton: Answers) -> None:
    assert everything(start_triton) == triton


def test_the_recording_has_every_call(triton: Answers) -> None:
    assert sorted(triton) == sorted(CASES)


@pytest.mark.parametrize("case", CASES)
def test_same_answer_or_a_reason(answers: Answers, triton: Answers, case: str) -> None:
    if case in ALLOWED:
        assert answers[case] != triton[case], "they agree now: take it out of ALLOWED"
    else:
        assert answers[case] == triton[case]


def test_no_call_makes_it_fail_or_fall_silent(answers: Answers, triton: Answers) -> None:
    """500 is said only where Triton says it too: a model that cannot be loaded."""
    blamed = {0, 500, "INTERNAL", "UNKNOWN"}
    failed = [name for name, answer in answers.items() if answer["status"] in blamed]
    assert [n for n in failed if answers[n]["status"] != triton[n]["status"]] == []


def test_every_reason_is_used() -> None:
    assert set(ALLOWED.values()) == set(REASONS)


def test_the_page_names_every_call_that_differs() -> None:
    assert sorted(named(PAGE.read_text())) == sorted(ALLOWED)
    assert set(SHOWN) <= set(ALLOWED)


def test_the_page_lists_exactly_the_differences(answers: Answers, triton: Answers) -> None:
    assert set(differing(triton, answers)) == set(ALLOWED)
    again = "write it again: .venv/bin/python -m tests.peers.pages"
    assert statuses(PAGE.read_text()) == statuses(page(triton, answers)), again


def statuses(text: str) -> list[str]:
    """A page without the words of our errors, which may change with the libraries that say them."""
    return [re.sub(r" `[^`]*` \|$", "", line) for line in text.splitlines()]
