"""The reader of measured pairs, on a file of its form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.planning.interference import draw, explained, missed, read
from interlace.perf.interference import Runner

MODELS = {"short": 1.0, "long": 4.0, "wide": 9.0}


def _written(folder: Path) -> None:
    lines: list[dict[str, object]] = []
    for model, ms in MODELS.items():
        grid = {b: {s: ms * int(b) * 100 / int(s) for s in ("40", "60")} for b in ("2", "4")}
        level = {b: {s: 10.0 * ms for s in ("40", "60")} for b in ("2", "4")}
        lines += [{model: {"latency": grid}}, {model: {"l2cache": level}}, {model: {"dram": level}}]
    pairs = []
    for one, two in (("short", "long"), ("short", "wide"), ("long", "wide")):
        for batch, share in ((2, 40), (2, 60), (4, 40), (4, 60)):
            alone = MODELS[one] * batch * 100 / share, MODELS[two] * 2 * 100 / (100 - share)
            pairs.append([one, two, batch, 2, share, alone[0] * 1.1, alone[1] * 1.2])
    lines.append({"interference": {"latency": pairs}})
    path = folder / "i-Gniter/Profile/tools/gpulet.config"
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(json.dumps(line) for line in lines))


def test_pairs_are_read_as_two_observations_each(tmp_path: Path) -> None:
    _written(tmp_path)
    seen, solos = read(tmp_path)
    assert len(seen) == 24
    assert seen[0].runner == Runner("short", 2, 40)
    assert seen[0].neighbours == (Runner("long", 2, 60),)
    assert [one.slowdown for one in seen[:2]] == pytest.approx([1.1, 1.2])
    assert solos(Runner("long", 2, 40)) == pytest.approx((20.0, 0.4, 0.4))


def test_every_predictor_is_tried_on_every_split_and_drawn(tmp_path: Path) -> None:
    _written(tmp_path)
    results = missed(*read(tmp_path))
    assert set(results) == {"known pairs", "unseen pairs", "unseen models"}
    assert all(len(p) == len(t) == 24 for p, t in results["unseen pairs"].values())
    draw(results, tmp_path / "out" / "interference.svg")
    assert (tmp_path / "out" / "interference.svg").read_text().startswith("<?xml")


def test_names_explain_what_was_made_of_names(tmp_path: Path) -> None:
    _written(tmp_path)
    seen, _ = read(tmp_path)
    known = explained(seen)
    assert known["pair"] == pytest.approx(1.0)  # the first named is slowed 1.1, the other 1.2
    assert known["runner"] <= known["runner + neighbour"] <= known["pair"] + 1e-9
