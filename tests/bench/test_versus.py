"""Worlds of the comparison, one small case, and the table of what is kept."""

import pytest

from bench.versus.run import Case, cases, measure, table
from bench.versus.worlds import worlds
from interlace.core.plan import Plan
from interlace.packing.bounds import lower_bound
from interlace.policy.catalog import resolve


def test_a_world_just_fits_at_its_ceiling() -> None:
    for world in worlds():
        bound = lower_bound(world.at(world.ceiling), world.gpu, world.profiles)
        assert bound.best.accelerators == pytest.approx(world.gpus, rel=1e-3)


def test_nine_models_overlap_where_their_cut_falls_short() -> None:
    (nine,) = (world for world in worlds() if world.name == "nine models")
    asked = nine.at(1.3 * nine.ceiling)
    assert resolve("interlace").planner(asked, nine.fleet, nine.profiles, Plan()).overlapping


def test_a_case_has_one_run_a_seed() -> None:
    found = measure(Case("D-STACK C-2", 0.3, 1.0, "interlace", 2, 200))
    assert found["key"] == "D-STACK C-2|0.3|1|interlace"
    assert len(found["runs"]) == 2
    assert all(0 < run["goodput_rps"] <= run["offered_rps"] for run in found["runs"])


def test_every_world_load_and_variation_meets_every_system() -> None:
    made = list(cases(["w", "v"], ["a", "b"], [0.5, 0.9], 5, 100))
    assert len({case.key for case in made}) == 16


def test_the_table_sets_ours_beside_the_best_other() -> None:
    def runs(*goodput: float) -> dict[str, object]:
        kept = [{"offered_rps": 100.0, "goodput_rps": g, "worst": 0.5} for g in goodput]
        return {"gpus": 2, "runs": kept}

    found = table(
        {"w|0.8|1|interlace": runs(90, 92), "w|0.8|1|x": runs(60, 61), "w|0.8|1|y": runs(45, 46)}
    )
    (line,) = found.cells
    assert line[6] == "x"
    assert str(line[8]).startswith("1.504")
    assert len(found.markdown().splitlines()) == 3
