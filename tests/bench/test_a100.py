"""The published A100 data read as profiles, scenarios and plans."""

from pathlib import Path

import pytest

from bench.planning.a100 import Published, a100, read_profile, scenarios, worst
from interlace.core.gpu_kinds import GPU_KINDS, uniform_fleet
from interlace.packing.bounds import lower_bound
from tests.bench.conftest import Drawn

GPU = GPU_KINDS["a100-mig"]
DATA = Path(__file__).parents[2].parent / "shared" / "data" / "a100-mig"


def _published() -> list[Published]:
    if not DATA.exists():
        pytest.skip(f"public data is not at {DATA}")
    return scenarios(DATA)


def test_processes_are_rows_in_flight(tmp_path: Path) -> None:
    """Two processes with 4 rows each, 100 rows/s each, end 8 rows in 40 ms."""
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "m.csv").write_text(
        "Mig instance,Batch size,Workload Number,Throughput,Latency\n"
        "1,1,1,50.0,0.02\n"
        "1,4,1,125.0,0.032\n"
        "1,4,2,100.0,0.04\n"
        "1,8,1,160.0,0.05\n"
        "1,16,1,800.0,0.02\n"
        "7,8,3,0,0\n"
    )
    points = {key: point.p95_ms for key, point in read_profile(tmp_path, "m").points.items()}
    assert points == {(1, 14): 20.0, (4, 14): 20.0, (8, 14): 20.0, (16, 14): 20.0}
    (tmp_path / "profiles" / "m.csv").write_text(
        "Mig instance,Batch size,Workload Number,Throughput,Latency\n"
        "2,4,2,100.0,0.04\n"
        "2,8,1,160.0,0.05\n"
    )
    points = {key: point.p95_ms for key, point in read_profile(tmp_path, "m").points.items()}
    assert points == {(8, 28): 40.0}


def test_published_deployments_are_legal_and_have_the_published_size() -> None:
    """ParvaGPU's own plans of S1 to S3: 2, 3 and 5 GPUs, never below the bound."""
    for one, gpus in zip(_published(), (2, 3, 5), strict=True):
        assert one.gpus == gpus
        assert one.plan is not None
        cuts: dict[str, list[int]] = {}
        for part in one.plan.partitions:
            cuts.setdefault(part.gpu, []).append(part.share_pct)
        assert all(GPU.legal(cut) for cut in cuts.values())
        assert gpus >= lower_bound(one.demand, GPU, one.profiles).gpus


def test_published_deployments_serve_their_rates_in_half_the_slo() -> None:
    """Their rule: a batch takes at most 0.45 of the SLO (rounding of the data aside)."""
    for one in _published():
        assert one.plan is not None
        for demand in one.demand:
            mine = [
                (part, slot)
                for part in one.plan.partitions
                for slot in part.slots
                if slot.model == demand.model
            ]
            assert sum(slot.rows_per_s for _, slot in mine) == pytest.approx(demand.rows_per_s)
            for part, slot in mine:
                assert 1000.0 * slot.batch / part.duty_ms >= slot.rows_per_s * (1 - 1e-9)
                assert part.duty_ms <= 0.45 * demand.slo_ms + 0.5


def test_the_smallest_published_plan_holds_under_poisson_arrivals() -> None:
    one = _published()[0]
    assert one.plan is not None
    there = uniform_fleet(GPU, one.gpus)
    assert worst(one, one.plan, there, seeds=(1_000,), seconds=2.0, system="interlace") >= 0.99


def test_every_system_is_tried_and_drawn(drawn: Drawn) -> None:
    _published()
    report = drawn(a100(DATA, systems=("gpulet",), unseen=0, limits=(24,), seeds=1, seconds=0.5))
    assert [line["system"] for line in report.figures] == ["published", "gpulet"] * 3
