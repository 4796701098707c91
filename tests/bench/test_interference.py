"""The reader of measured pairs, on a file of its form."""

import json
from pathlib import Path

import pytest

from bench.planning.beside import PlayedPlan, played, table_of, without
from bench.planning.interference import explained, interference, missed, wins
from bench.planning.pairs import read
from interlace.perf.interference import CoRunner
from interlace.perf.slowdown.observation import Observation
from tests.bench.conftest import Drawn

MODELS = {"short": 1.0, "long": 4.0, "wide": 9.0}


def write_set(folder: Path) -> None:
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
    write_set(tmp_path)
    measured = read(tmp_path)
    seen, solos = measured.seen, measured.solos
    assert len(seen) == 24
    assert seen[0].runner == CoRunner("short", 2, 40)
    assert seen[0].neighbours == (CoRunner("long", 2, 60),)
    assert [one.slowdown for one in seen[:2]] == pytest.approx([1.1, 1.2])
    alone_ms, pressure = solos(CoRunner("long", 2, 40))
    assert alone_ms == pytest.approx(20.0) and pressure == pytest.approx((0.4, 0.4))


def test_every_predictor_is_tried_on_every_split_and_drawn(tmp_path: Path, drawn: Drawn) -> None:
    write_set(tmp_path)
    measured = read(tmp_path)
    seen, solos = measured.seen, measured.solos
    results = missed(seen, solos)
    assert set(results) == {"known pairs", "unseen pairs", "unseen models"}
    assert all(len(p) == len(t) == 24 for p, t in results["unseen pairs"].values())
    assert wins(seen, results)["constant"] == (0, 3)
    report = drawn(interference(data=(tmp_path,)))
    assert set(report.figures["igniter"]["known pairs"]) == {"none", "constant", "linear", "ours"}


def test_names_explain_what_was_made_of_names(tmp_path: Path) -> None:
    write_set(tmp_path)
    seen = read(tmp_path).seen
    known = explained(seen)
    assert known["pair"] == pytest.approx(1.0)  # the first named is slowed 1.1, the other 1.2
    assert known["runner"] <= known["runner + neighbour"] <= known["pair"] + 1e-9


def test_the_other_set_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name, lines in {
        "inference": [
            "a,1,20,throughput,250,latency,0.004,1",
            "a,1,80,throughput,500,latency,0.002,1",
        ],
        "mem_util": ["a,1,20,mem_util,7.0,l2_util,9.0,0", "a,1,80,mem_util,14.0,l2_util,18.0,0"],
        "interference": ["a,1,20,a,1,throughput,200,latency,0.005,1"],
    }.items():
        (tmp_path / "data" / f"{name}.csv").write_text("\n".join(lines))
    measured = read(tmp_path)
    name, seen, solos = measured.name, measured.seen, measured.solos
    assert name == "gpulet" and len(seen) == 1
    assert seen[0].runner == CoRunner("a", 1, 20) and seen[0].neighbours == (CoRunner("a", 1, 80),)
    assert seen[0].slowdown == pytest.approx(1.25)
    alone_ms, pressure = solos(CoRunner("a", 1, 80))
    assert alone_ms == pytest.approx(2.0) and pressure == pytest.approx((0.18, 0.14))


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has neither"):
        read(tmp_path)


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
