"""Gaps and idle shares, as the event stream shows them."""

from __future__ import annotations

from collections.abc import Sequence

from interlace.core.messages import (
    Carve,
    Command,
    Event,
    Finished,
    Load,
    Release,
    Run,
    Ticked,
    Withdrawn,
    Work,
)
from interlace.core.request import Batch
from interlace.sim.gaps import Change, Gap, Gaps


def _play(*happenings: tuple[float, Event, Sequence[Command]]) -> Gaps:
    gaps = Gaps()
    for now_ms, event, commands in happenings:
        gaps(now_ms, event, commands)
    return gaps


def _stand(partition: str, share_pct: int, at_ms: float, ready_ms: float) -> list[tuple]:  # type: ignore[type-arg]
    """A partition with model m, asked for at one time and ready at another."""
    carve, load = Carve("g", partition, share_pct), Load("g", partition, "m")
    return [
        (at_ms, Ticked(), [carve]),
        (ready_ms, Finished(carve), [load]),
        (ready_ms, Finished(load), []),
    ]


def _gone(partition: str, at_ms: float) -> list[tuple]:  # type: ignore[type-arg]
    release: Work = Release("g", partition)
    return [(at_ms, Ticked(), [release]), (at_ms + 1.0, Finished(release), [])]


def test_make_before_break_has_no_gap_and_nothing_idle() -> None:
    gaps = _play(
        *_stand("p0", 50, 0, 10), *_stand("p1", 50, 100, 120), *_gone("p0", 120), (200, Ticked(), [])
    )
    assert gaps.gaps() == []
    assert gaps.changes() == [Change("g", 0, 10, 0.0), Change("g", 100, 121, 0.0)]


def test_break_before_make_is_a_gap_of_half_an_accelerator() -> None:
    gaps = _play(
        *_stand("p0", 50, 0, 10), *_gone("p0", 100), *_stand("p1", 80, 101, 121), (200, Ticked(), [])
    )
    assert gaps.gaps() == [Gap("m", 100, 121)]
    assert gaps.changes()[1] == Change("g", 100, 121, 21 * 0.5)


def test_a_partition_that_went_with_its_last_batch_closed_when_that_began() -> None:
    run, release = Run("g", "p0", Batch(1, "m", (), 0)), Release("g", "p0")
    gaps = _play(
        *_stand("p0", 100, 0, 10),
        (90, Ticked(), [run]),
        (100, Finished(run), [release]),
        (101, Finished(release), []),
        *_stand("p1", 100, 101, 121),
    )
    assert gaps.gaps() == [Gap("m", 90, 121)]
    assert gaps.changes()[1] == Change("g", 90, 121, 31.0)


def test_a_model_that_was_withdrawn_is_not_missed() -> None:
    gaps = _play(
        *_stand("p0", 50, 0, 10), (50, Withdrawn("m"), []), *_gone("p0", 60), (200, Ticked(), [])
    )
    assert gaps.gaps() == []
