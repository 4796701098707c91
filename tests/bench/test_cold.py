"""More models than memory in reduced form: what the goals are made of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.cold.machines import bert_on_h100, h100, p3_8xlarge
from bench.cold.many_models import least_link_part, many_models, one_run
from bench.cold.playing import cold_run, poisson, with_cold, zipf_parts
from bench.cold_start import cold_start
from interlace.core.hardware import Fleet
from interlace.core.loading import HostTier
from interlace.policy.cold_starts.catalog import COLD_POLICIES
from interlace.policy.load_order import first_come, least_recently_used, on_demand
from interlace.sim.arrivals import Arrivals
from tests.profiling.cpu.test_layers import CODE

GB = 10**9


def test_ours_spares_the_link_and_the_tail() -> None:
    found = many_models(models=30, memory_gb=1.2, seconds=3.0, seeds=1, rows="pipeswitch,interlace")
    rows = {row.what.rpartition(" (")[0]: row.ours for row in found.rows}
    for where in ("100/s, Zipf 0", "250/s, Zipf 0", "250/s, Zipf 0.9", "250/s, Zipf 1.1"):
        ours, lru = (f"{where}, {name}" for name in ("interlace", "pipeswitch"))
        assert rows[f"{ours}: link over optimum"] <= rows[f"{lru}: link over optimum"]
        assert rows[f"{ours}: p99"] <= rows[f"{lru}: p99"]
        assert rows[f"{ours}: in time"] >= 99.0


@pytest.mark.parametrize("skew", [0.0, 0.9])
def test_the_optimum_falls_with_memory_and_is_none_with_all_of_it(skew: float) -> None:
    parts = zipf_parts(20, skew)
    least = [least_link_part(parts, 100.0, memory_gb * GB) for memory_gb in (0, 1, 2, 5)]
    assert least == sorted(least, reverse=True) and least[-1] == pytest.approx(0.0, abs=1e-9)


def test_with_memory_for_all_nothing_moves_after_the_start() -> None:
    found = one_run("interlace", zipf_parts(5, 0.0), 100.0, 5 * GB, 4.0, 0)
    assert found.moved_bytes == 0 and found.in_slo == 1.0


def test_machines_have_their_links() -> None:
    four = p3_8xlarge(GB)
    assert [gpu.links.names for gpu in four.gpus] == [
        ("switch0", "switch1"),
        ("switch0", "switch1"),
        ("switch1", "switch0"),
        ("switch1", "switch0"),
    ]
    assert all(gpu.weights_bytes == GB for gpu in four.gpus)
    assert sum(one.weights_bytes for one in bert_on_h100().layers) == pytest.approx(219e6, rel=0.01)


def test_loads_that_wait_for_company_move_fewer_bytes_and_make_nothing_late() -> None:
    """A third of the models fits; first come and LRU brings them by the same plan."""
    ours = with_cold("interlace")
    first_come_lru = replace(
        ours.cold, eviction=least_recently_used, prefetch=on_demand, order=first_come
    )
    names = [f"bert-{place}" for place in range(12)]
    profiles = dict.fromkeys(names, bert_on_h100())
    arrivals = poisson(dict.fromkeys(names, 5.0), 6.0, 0)
    plain, waiting = (
        cold_run(system, h100(4 * 171_000_000), profiles, arrivals, 2000.0)
        for system in (replace(ours, cold=first_come_lru), ours)
    )
    assert waiting.moved_bytes <= 0.7 * plain.moved_bytes
    assert not waiting.late - plain.late


def test_from_disk_a_cold_start_is_bound_by_its_bytes() -> None:
    """A host without memory for models, and a disk of 4 GB/s: reads, copies and runs overlap."""
    names = tuple(f"bert{number}" for number in range(8))
    profiles = {name: replace(bert_on_h100(), model=name) for name in names}
    (gpu,) = h100(300_000_000).gpus
    fleet = Fleet((replace(gpu, host=HostTier(10, 4e6)),))
    times_ms = 100.0 + 1000.0 * np.arange(16)
    arrivals = Arrivals(names, times_ms, np.tile(np.arange(8), 2).astype(np.int32), 16.0)
    bound_ms = bert_on_h100().weights_bytes / 4e6
    for way in COLD_POLICIES:
        found = cold_run(with_cold(way), fleet, profiles, arrivals, 500.0, warm_part=0.5)
        assert found.cold == found.sent == 8
        # Algorithm 1 as printed leaves layers on the host however long they are read there.
        most = 1.2 if way == "deepplan-printed" else 1.05
        assert bound_ms < found.p99_ms < most * bound_ms, way


def test_every_way_is_timed_beside_a_warm_run(tmp_path: Path) -> None:
    (tmp_path / "net" / "1").mkdir(parents=True)
    (tmp_path / "net" / "1" / "model.py").write_text(CODE)
    report = cold_start(tmp_path, model="net", takes=2)
    predicted, times = report.figures
    plans = {"copy", "pipeswitch", "deepplan-dha", "interlace", "all left in the file"}
    assert predicted.keys() == plans
    beside = {"warm", "warm, flushed", "interlace, flushed", "opened", "loaded"}
    assert times.keys() == plans | beside
    assert all(took_ms > 0.0 for ones in times.values() for took_ms in ones)
    assert [row.published for row in report.rows] == [1.10, 1.10, 4.0, None]


def test_from_disk_every_way_is_beside_reading_the_file(tmp_path: Path) -> None:
    (tmp_path / "net" / "1").mkdir(parents=True)
    (tmp_path / "net" / "1" / "model.py").write_text(CODE)
    report = cold_start(tmp_path, model="net", takes=2, disk=True)
    predicted, times = report.figures
    assert {"read", "copy", *predicted} < times.keys()
    assert [row.published for row in report.rows] == [1.15, 3.5, None]
