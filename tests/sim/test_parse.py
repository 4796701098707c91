"""Workloads as scenario files say them, and what is wrong with those that do not."""

from pathlib import Path

import numpy as np
import pytest

from interlace.core.tables import TableError
from interlace.sim.arrivals import Gamma, Steady, Uniform
from interlace.sim.workload.parse import KEYS, Diurnal, Mmpp, Ramp, Steps, workload
from interlace.sim.workload.traces import BinnedCounts, RefittedGamma, ReplayedTrace, TraceFiles

WINDOWS = RefittedGamma(((1.0, 1.0), (0.5, 1.0), (0.5, 1.0)), 2.0)
GOOD: dict[str, tuple[dict[str, object], object]] = {
    "poisson": ({}, Gamma(50.0)),
    "gamma": ({"cv": 4}, Gamma(50.0, 4.0)),
    "uniform": ({"rate_rps": 10}, Uniform(10.0)),
    "steady": ({}, Steady(50.0)),
    "steps": ({"steps": [[0, 10], [5, 100]]}, Steps(((0.0, 10.0), (5.0, 100.0)))),
    "diurnal": ({"low_rps": 1, "high_rps": 9, "period_s": 60}, Diurnal(1.0, 9.0, 60.0)),
    "mmpp": ({"states": [[10, 1], [90, 0.2]]}, Mmpp(((10.0, 1.0), (90.0, 0.2)))),
    "ramp": ({"rates_rps": [10, 20], "every": 30}, Ramp((10.0, 20.0), 30)),
    "azure": ({"file": "azure.csv", "function": "f"}, BinnedCounts((60, 120), scale=50.0 / 1.5)),
    "azure-2021": ({"file": "calls.csv", "part": "1/1", "window_s": 2}, WINDOWS),
    "trace": ({"file": "own.csv", "model": "a"}, None),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "azure.csv").write_text("HashFunction,1,2\nf,60,120\n")
    (tmp_path / "many.csv").write_text("HashFunction,1,2\nf,1,2\ng,60,0\nh,5,5\n")
    calls = "func,end_timestamp,duration\nf,1,1\ng,3,1\nf,2,1\nf,5,1\n"
    (tmp_path / "calls.csv").write_text(calls)
    (tmp_path / "own.csv").write_text("time_ms,model\n1,a\n9,a\n")
    return tmp_path


def test_every_kind_is_tried() -> None:
    assert set(GOOD) == set(KEYS)


@pytest.mark.parametrize("kind", sorted(KEYS))
def test_kinds(kind: str, folder: Path) -> None:
    table, expected = GOOD[kind]
    made = workload({"kind": kind, **table}, "m", 50.0, 2.0, TraceFiles(folder))
    if isinstance(made, ReplayedTrace):
        assert made(1.0, np.random.default_rng(0)).tolist() == [1.0, 9.0]
    else:
        assert made == expected


def test_without_a_table_the_demand_says_it(folder: Path) -> None:
    assert workload({}, "m", 50.0, 2.0, TraceFiles(folder)) == Gamma(50.0, 2.0)


def test_more_that_a_ramp_can_be(folder: Path) -> None:
    table = {"kind": "ramp", "rates_rps": [10, 20], "every": [150, 250], "random_gaps": True}
    assert workload(table, "m", 1.0, 1.0, TraceFiles(folder)) == Ramp(
        (10.0, 20.0), (150, 250), True
    )


def _azure(part: str, folder: Path, **more: object) -> BinnedCounts:
    made = workload(
        {"kind": "azure", "file": "many.csv", "part": part, **more}, "m", 5, 1, TraceFiles(folder)
    )
    assert isinstance(made, BinnedCounts)
    return made


def test_parts_of_a_trace_by_minute_are_folded_by_volume(folder: Path) -> None:
    """g, h and f by volume: two models get g and f, and h."""
    assert _azure("1/2", folder).counts == (61, 2)
    assert _azure("2/2", folder).counts == (5, 5)
    assert _azure("2/2", folder).scale == pytest.approx(60.0)  # 5 rps of 10 requests in 120 s
    parts = [_azure(part, folder, total_rps=20.0) for part in ("1/2", "2/2")]
    assert sum(sum(one.counts) * one.scale for one in parts) / 120.0 == pytest.approx(20.0)
    fast = _azure("1/2", folder, total_rps=20.0, speed=4.0)
    assert fast.scale == pytest.approx(parts[0].scale / 4.0)  # requests/s as they are played


def test_a_trace_may_be_played_without_its_largest_and_as_a_day_drawn_from_it(folder: Path) -> None:
    assert _azure("1/2", folder, skip=1).counts == (5, 5)
    assert _azure("2/2", folder, skip=1).counts == (1, 2)
    drawn = [_azure(part, folder, drawn=300, skip=1, total_rps=20.0) for part in ("1/2", "2/2")]
    assert sum(sum(one.counts) * one.scale for one in drawn) / 120.0 == pytest.approx(20.0)
    for one in drawn:  # as many begin with their busy minute as with the other
        assert one.counts[0] == pytest.approx(one.counts[1], rel=0.1)
        assert sum(one.counts) == pytest.approx(150 * 6.5, rel=0.2)
    assert drawn == [
        _azure(part, folder, drawn=300, skip=1, total_rps=20.0) for part in ("1/2", "2/2")
    ]


def test_a_trace_is_read_once_for_all_its_models(folder: Path) -> None:
    traces, table = TraceFiles(folder), {"kind": "azure", "file": "many.csv", "total_rps": 10}
    first = workload(table | {"part": "1/2"}, "m", 5, 1, traces)
    (folder / "many.csv").unlink()
    assert workload(table | {"part": "1/2"}, "m", 5, 1, traces) == first
    assert workload(table | {"part": "2/2"}, "n", 5, 1, traces) != first


def test_parts_of_a_trace_by_invocation_are_taken_in_turn(folder: Path) -> None:
    table = {"kind": "azure-2021", "file": "calls.csv"}
    times = [
        workload(table | more, "m", 1.0, 1.0, TraceFiles(folder))(
            9.0, np.random.default_rng(0)
        ).tolist()
        for more in ({"part": "1/2"}, {"part": "2/2"}, {"part": "1/1"}, {"function": "g"}, {})
    ]
    f, g = [0.0, 1000.0, 4000.0], [2000.0]
    assert times == [f, g, sorted(f + g), g, f]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"kind": "fractal"}, "kind is 'fractal'; expected one of azure, "),
        ({"kind": "poisson", "cv": 3}, "cv is an unknown key; expected one of .*rate_rps"),
        ({"kind": "gamma", "cv": 0}, "cv is 0; expected a number above 0"),
        ({"kind": "gamma", "rate_rps": "many"}, "rate_rps is 'many'; expected a number"),
        ({"kind": "steps", "steps": [[5, 1], [0, 2]]}, r"steps is at \[5.0, 0.0\]; expected asc"),
        ({"kind": "steps", "steps": [[5]]}, r"steps\[0\] is \[5\]; expected a list of 2"),
        ({"kind": "mmpp"}, "states is missing"),
        ({"kind": "mmpp", "states": []}, r"states is \[\]; expected a list of \[requests"),
        ({"kind": "ramp", "rates_rps": [0]}, r"rates_rps\[0\] is 0; expected a number above 0"),
        ({"kind": "diurnal", "low_rps": 1}, "high_rps is missing; expected a number above 0"),
        ({"kind": "azure", "file": "azure.csv", "function": "g"}, "function is 'g'; expected one"),
        ({"kind": "trace", "file": "own.csv"}, "model is 'm'; expected one of the 1 of .*own.csv"),
        ({"kind": "trace"}, "file is missing"),
        ({"kind": "trace", "file": 3}, "file is 3; expected a string"),
        ({"kind": "gamma", "rate_rps": float("nan")}, "rate_rps is nan; expected a number"),
        ({"kind": "mmpp", "states": [[1, 0]]}, r"states\[0\]\[1\] is 0; expected a number"),
        ({"kind": "steps", "steps": [[0, -1]]}, r"steps\[0\]\[1\] is -1; expected a number"),
        ({"kind": "steps", "steps": [[0, 1], [0, 2]]}, "expected ascending seconds"),
        (
            {"kind": "ramp", "rates_rps": [1], "every": [1.5]},
            r"every\[0\] is 1.5; expected a whole",
        ),
        (
            {"kind": "ramp", "rates_rps": [1], "every": []},
            r"every is \[\]; expected a whole number",
        ),
        (
            {"kind": "ramp", "rates_rps": [1], "random_gaps": 1},
            "random_gaps is 1; expected true or",
        ),
        (
            {"kind": "diurnal", "low_rps": 9, "high_rps": 1, "period_s": 1},
            "low_rps is 9; expected at most high_rps, 1",
        ),
        ({"kind": "azure", "file": "azure.csv", "part": "3/2"}, "part is '3/2'; expected such as"),
        ({"kind": "azure", "file": "azure.csv", "part": "3"}, "part is '3'; expected such as"),
        (
            {"kind": "azure", "file": "many.csv", "function": "f", "drawn": 3},
            "function is 'f'; expected none of it beside skip or drawn",
        ),
        (
            {"kind": "azure", "file": "many.csv", "part": "1/2", "skip": 3},
            "skip is 3; expected fewer than the 3 functions of .*many.csv",
        ),
        (
            {"kind": "azure-2021", "file": "calls.csv", "function": "G"},
            "function is 'G'; expected one of the 2",
        ),
    ],
)
def test_errors_name_the_key(table: dict[str, object], words: str, folder: Path) -> None:
    with pytest.raises(TableError, match=words):
        workload(table, "m", 50.0, 1.0, TraceFiles(folder))
