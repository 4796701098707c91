"""Work in several processes: the answers of one, whatever becomes of the others."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.planning.parallel import in_parallel

ROOT = Path(__file__).resolve().parents[2]
COSTS = st.lists(st.floats(0.0, 1e6), max_size=6)


@given(COSTS, st.integers(1, 4))
def test_answers_are_those_of_one_after_the_other(costs: list[float], cores: int) -> None:
    asked = [f"{number}" for number in range(len(costs))]
    assert in_parallel(lambda one: one * 2, asked, costs, cores) == [one * 2 for one in asked]


def each_core_has_a_process() -> None:
    pids = in_parallel(lambda _: os.getpid(), range(6), [3.0, 2.0, 2.0, 1.0, 1.0, 1.0], 3)
    assert len(set(pids)) == 3 and os.getpid() in pids
    assert pids[1] == pids[4] or pids[2] == pids[4], "to whoever has least"


def what_a_process_leaves_undone_is_done_here() -> None:
    here = os.getpid()

    def lost(number: int) -> int:
        if os.getpid() != here:
            os._exit(1)
        return number

    assert in_parallel(lost, range(4), [1.0] * 4, 2) == [0, 1, 2, 3]


def what_goes_wrong_in_a_process_is_told_here() -> None:
    def wrong(number: int) -> int:
        return 1 // (number - 3)

    with pytest.raises(ZeroDivisionError):
        in_parallel(wrong, range(4), [4.0, 3.0, 2.0, 1.0], 2)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.mark.parametrize(
    "law",
    [
        each_core_has_a_process,
        what_a_process_leaves_undone_is_done_here,
        what_goes_wrong_in_a_process_is_told_here,
    ],
    ids=lambda law: law.__name__,
)
def test_in_a_process_without_threads(law: Callable[[], None]) -> None:
    """Of its own: where tests ran before, threads may be left."""
    code = f"from {__name__} import {law.__name__} as law; law()"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_a_process_with_threads_is_not_copied() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        pids = in_parallel(lambda _: os.getpid(), range(2), [1.0, 1.0], 2)
    finally:
        over.set()
        thread.join()
    assert set(pids) == {os.getpid()}
