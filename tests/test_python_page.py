"""What docs/python.md shows is run, in its order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import interlace
from tests.serve.server import write_model

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "python.md").read_text()
PLANS, VARIANTS, RUNS, SERVES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)


def test_planning_and_simulating(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    for code in (PLANS, VARIANTS, RUNS):
        exec(compile(code, "python.md", "exec"), names)
    said = capsys.readouterr().out
    assert "2 GPUs, 2 at the least, 0.80 an hour" in said
    assert said.count("requests/s in time") == 2


@pytest.mark.process
def test_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path / "models", "double")
    monkeypatch.chdir(tmp_path)
    more = "port=0, grpc_port=0, metrics_port=0, cores='0', device='cpu', profiles=PROFILES"
    names = {"interlace": interlace, "PROFILES": tmp_path / "profiles"}
    exec(compile(SERVES.replace("port=0", more), "python.md", "exec"), names)
    assert "['double']" in capsys.readouterr().out


def test_every_name_of_the_page_is_exported() -> None:
    for name in set(re.findall(r"`interlace\.(\w+)", PAGE)):
        assert hasattr(interlace, name), name
        assert name in interlace.__all__
