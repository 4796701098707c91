"""What plans keep beside what slows them: the command's parts on a small set."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.planning.beside import PlayedPlan, played, table_of, without
from bench.planning.pairs import read
from interlace.perf.interference import CoRunner
from interlace.perf.slowdown.observation import Observation
from tests.bench.test_interference import write_set


def test_what_is_known_leaves_out_half_of_the_pair_or_all_of_it() -> None:
    a, b, c = (CoRunner(name, 1, 50) for name in "abc")
    pair = [Observation(a, (b,), 1.0 + i / 10) for i in range(4)]
    other = [Observation(a, (c,), 1.5), Observation(b, (c,), 1.6)]
    known = without([*pair, *other], "a", "b")
    assert known["unseen pair"] == other
    assert known["known pair"] == [*pair[:2], *other]


def test_every_predictor_plans_and_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.planning.beside._REQUESTS", 300)
    monkeypatch.setattr("bench.planning.beside._CLOSE", 0.2)
    write_set(tmp_path)
    kept = list(played(read(tmp_path), 1, "interlace"))
    assert len(kept) == 3 * 2 * 4, "pairs, splits, predictors"
    assert all(0.0 <= one.attainment <= 1.0 and one.factor > 0.0 for one in kept)
    of_none = sum(one.factor for one in kept if one.predictor == "none")
    assert sum(one.factor for one in kept if one.predictor == "ours") <= of_none * 1.1


def test_sums_are_relative_to_plans_without_interference() -> None:
    kept = [PlayedPlan("s", "none", 2, 0.9, 1), PlayedPlan("s", "none", 2, 1.0, 0),
            PlayedPlan("s", "ours", 3, 0.995, 0), PlayedPlan("s", "ours", 2, 1.0, 0)]  # fmt: skip
    rows = {row[1]: row[2:] for row in table_of("set", kept).cells}
    assert rows == {"none": ("1.00", "90.00", "1 of 4"), "ours": ("1.25", "99.50", "0 of 4")}
