"""Workloads as scenario files say them, and what is wrong with those that do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from interlace.sim.workload.changing import Diurnal, Mmpp, Ramp, Steps
from interlace.sim.workload.parse import KINDS, WorkloadError, workload
from interlace.sim.workload.recorded import Counts, Replayed
from interlace.sim.workload.renewal import Gamma
from interlace.sim.workload.spacing import Steady, Uniform

GOOD: dict[str, tuple[dict[str, object], object]] = {
    "poisson": ({}, Gamma(50.0)),
    "gamma": ({"cv": 4}, Gamma(50.0, 4.0)),
    "uniform": ({"rate_rps": 10}, Uniform(10.0)),
    "steady": ({}, Steady(50.0)),
    "steps": ({"steps": [[0, 10], [5, 100]]}, Steps(((0.0, 10.0), (5.0, 100.0)))),
    "diurnal": ({"low_rps": 1, "high_rps": 9, "period_s": 60}, Diurnal(1.0, 9.0, 60.0)),
    "mmpp": ({"states": [[10, 1], [90, 0.2]]}, Mmpp(((10.0, 1.0), (90.0, 0.2)))),
    "ramp": ({"rates_rps": [10, 20], "every": 30}, Ramp((10.0, 20.0), 30)),
    "azure": ({"file": "azure.csv", "function": "f"}, Counts((60, 120), scale=50.0 / 1.5)),
    "trace": ({"file": "own.csv", "model": "a"}, None),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "azure.csv").write_text("HashFunction,1,2\nf,60,120\n")
    (tmp_path / "own.csv").write_text("time_ms,model\n1,a\n9,a\n")
    return tmp_path


def test_every_kind_is_tried() -> None:
    assert set(GOOD) == set(KINDS)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_kinds(kind: str, folder: Path) -> None:
    table, expected = GOOD[kind]
    made = workload({"kind": kind, **table}, "m", 50.0, 2.0, folder)
    if isinstance(made, Replayed):
        assert made(1.0, np.random.default_rng(0)).tolist() == [1.0, 9.0]
    else:
        assert made == expected


def test_without_a_table_the_demand_says_it(folder: Path) -> None:
    assert workload({}, "m", 50.0, 2.0, folder) == Gamma(50.0, 2.0)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"kind": "fractal"}, "kind: expected one of poisson"),
        ({"kind": "poisson", "cv": 3}, "cv: 'poisson' has the keys rate_rps"),
        ({"kind": "gamma", "cv": 0}, "cv: expected a number above 0"),
        ({"kind": "gamma", "rate_rps": "many"}, "rate_rps: expected a number"),
        ({"kind": "steps", "steps": [[5, 1], [0, 2]]}, "steps: expected ascending"),
        ({"kind": "steps", "steps": [[5]]}, r"steps\[0\]: expected"),
        ({"kind": "mmpp"}, "states: expected a list"),
        ({"kind": "ramp", "rates_rps": [0]}, "rates_rps: expected"),
        ({"kind": "diurnal", "low_rps": 1}, "high_rps: expected"),
        ({"kind": "azure", "file": "azure.csv", "function": "g"}, "function: 'g' is not among"),
        ({"kind": "trace", "file": "own.csv"}, "model: 'm' is not among"),
        ({"kind": "trace"}, "file: expected a path"),
    ],
)
def test_errors_name_the_key(table: dict[str, object], words: str, folder: Path) -> None:
    with pytest.raises(WorkloadError, match=words):
        workload(table, "m", 50.0, 1.0, folder)
