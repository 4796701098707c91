"""The thread that loads: its ends are heard; what it made is left out of searches for cycles."""

import gc
import select
from collections.abc import Iterator

import pytest

from interlace.device.cuda.worker import loader
from interlace.device.cuda.worker.loader import LoaderThread

WAIT_S = 20.0


@pytest.fixture
def made() -> Iterator[LoaderThread]:
    gc.unfreeze()
    made = LoaderThread()
    yield made
    made.close()
    gc.unfreeze()


def result_of(made: LoaderThread, job: object) -> object:
    heard: list[object] = []
    made.submit(job, heard.append)  # type: ignore[arg-type]
    assert not made.idle
    assert select.select([made.fileno()], [], [], WAIT_S)[0]
    made.drain()
    assert made.idle
    (result,) = heard
    return result


def test_what_a_job_returns_or_raises_is_heard(made: LoaderThread) -> None:
    assert result_of(made, lambda: 7) == 7

    def fail() -> None:
        raise SystemExit("no")

    assert isinstance(result_of(made, fail), SystemExit)


def test_what_was_loaded_is_not_searched_again(made: LoaderThread) -> None:
    kept = result_of(made, lambda: [[one] for one in range(10_000)])
    assert isinstance(kept, list)
    # Others' frozen objects come and go with what runs beside: these are looked for themselves.
    assert not any(one is kept[5] for one in gc.get_objects())


def test_what_was_left_behind_is_found_in_the_end(
    made: LoaderThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "_THAW", 3)

    class Node:
        alive = 0

        def __init__(self) -> None:
            self.own = self
            Node.alive += 1

        def __del__(self) -> None:
            Node.alive -= 1

    kept = [result_of(made, Node)]
    kept.clear()
    gc.collect()
    assert Node.alive == 1  # a cycle, set aside
    for _ in range(2):
        result_of(made, lambda: None)
    assert Node.alive == 0
