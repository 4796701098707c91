"""What docs/workloads.md shows works as it is written there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from interlace.sim.workload.parse import KEYS, workload
from interlace.sim.workload.traces import TraceFiles

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "workloads.md").read_text()
TABLES = {
    f"{name} {number}": (name, table)
    for number, text in enumerate(re.findall(r"^```\n(\[.*?)^```$", PAGE, re.M | re.S))
    for name, table in tomllib.loads(text).get("try", {}).items()
}
APPS = [text for text in re.findall(r"^```\n(\[apps.*?)^```$", PAGE, re.M | re.S)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "functions.csv").write_text("HashFunction,1,2\na699df,60,120\nb,9,0\nc,0,2\n")
    calls = "\n".join(f"{'fg'[i % 2]},{i / 3},0.1" for i in range(1, 600))
    (tmp_path / "calls.csv").write_text(f"func,end_timestamp,duration\n{calls}\n")
    (tmp_path / "own.csv").write_text("time_ms,model\n1,resnet50\n9,resnet50\n")
    return tmp_path


@pytest.mark.parametrize("key", TABLES)
def test_tables_are_workloads(key: str, folder: Path) -> None:
    _, table = TABLES[key]
    made = workload(table, "resnet50", 100.0, 1.0, TraceFiles(folder))
    assert len(made(20.0, np.random.default_rng(0))) > 1


def test_every_kind_is_shown_and_every_key_named() -> None:
    shown = {table["kind"] for _, table in TABLES.values()}
    assert shown == set(KEYS)
    for kind, keys in KEYS.items():
        assert f"| `{kind}` |" in PAGE
        (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{kind}` |")]
        assert {key for key in keys if f"`{key}`" not in line} == set()


def test_the_app_shown_is_the_examples() -> None:
    (text,) = APPS
    assert text in (ROOT / "examples" / "planning" / "apps.toml").read_text()
