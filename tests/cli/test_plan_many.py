"""`interlace plan` of many plans, and as pictures: what-if, compare, draw."""

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from interlace.policy.catalog import CATALOG
from tests.cli.planning import Question


@pytest.fixture
def question(tmp_path: Path) -> Question:
    return Question(tmp_path)


def test_what_if_is_one_line_each(question: Question) -> None:
    said = question.plan("--what-if", "rates=0.5,4", "--what-if", "slos=2", "--json")
    found = said.json
    assert list(found) == ["as asked", "rates x 0.5", "rates x 4", "SLOs x 2"]
    assert found["rates x 0.5"]["gpus"] <= found["as asked"]["gpus"] < found["rates x 4"]["gpus"]
    assert found["SLOs x 2"]["lower_bound"]["gpus"] <= found["as asked"]["lower_bound"]["gpus"]
    assert "2 of 4: rates x 0.5" in said.err


def test_what_if_on_another_gpu_says_what_is_assumed(question: Question) -> None:
    said = question.plan("--what-if", "gpu=v100")
    assert "on v100" in said.out
    assert "its latencies are taken for those of v100" in said.out


def test_what_if_is_drawn(question: Question) -> None:
    picture = question.folder / "sweep.svg"
    question.plan("--what-if", "rates=1,2", "--draw", str(picture))
    text = picture.read_text()
    ET.fromstring(text)
    assert "lower bound" in text


def test_compare_has_every_row(question: Question) -> None:
    said = question.plan("--compare", "--json")
    assert set(said.json) == {row.name for row in CATALOG.values()}
    for name, one in said.json.items():
        assert one["system"] == name
        for model, asked in one["models"].items():
            slots = [s for p in one["partitions"] for s in p["slots"] if s["model"] == model]
            lost = one["unserved_rows_per_s"].get(model, 0.0)
            planned = sum(slot["rows_per_s"] for slot in slots)
            assert planned + lost >= asked["rate_rps"] * (1 - 1e-3)
            assert not lost or one["reasons"][model]
    bounds = {one["lower_bound"]["gpus"] for one in said.json.values()}
    assert len(bounds) == 1
    served = [one["gpus"] for one in said.json.values() if not one["unserved_rows_per_s"]]
    assert min(served) >= min(bounds)
    table = question.plan("--compare").out
    for row in CATALOG.values():
        assert row.name in table


def test_pictures_name_what_they_show(question: Question) -> None:
    drawn = question.folder / "plan.svg"
    pixels = question.folder / "plan.png"
    question.plan("--draw", str(drawn), "--draw", str(pixels))
    text = drawn.read_text()
    ET.fromstring(text)
    for words in ("no scheduler needs fewer", "small", "large", "gpu0"):
        assert words in text, words
    assert pixels.read_bytes().startswith(b"\x89PNG")


def test_more_gpus_than_blocks_are_drawn_together(question: Question) -> None:
    text = question.path.read_text().replace("gpus = 8", "gpus = 200")
    question.path.write_text(text)
    picture = question.folder / "many.svg"
    said = question.plan("--json", "--rate", "large=4000", "--draw", str(picture))
    assert said.json["gpus"] > 32
    assert "alike" in picture.read_text()


def test_start_of_the_command_loads_no_drawing() -> None:
    code = "import sys, interlace.cli.main, interlace.cli.plan; print('matplotlib' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
