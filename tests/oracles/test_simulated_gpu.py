"""The simulated accelerator against published figures, with nothing fitted to them."""

from collections.abc import Sequence

import pytest

from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.profile import LatencyPoint, Profile
from interlace.device.simulated.physics import (
    BOARDS,
    MECHANISMS,
    RunningBatch,
    Transfer,
    equal_rows,
    physics_of,
)
from interlace.device.simulated.running_batches import RunningBatches
from interlace.perf.latency import Surface, surface
from interlace.runtime.clock import SimClock


def saturating(knee_pct: int, row_ms: float = 1.0) -> Surface:
    """Latency in proportion to rows, and to one over the share below the knee; no fixed cost."""
    points = {}
    for share_pct in (10, 20, 25, 30, 40, 50, 60, 80, 100):
        for rows in (1, 256):
            ms = rows * row_ms * max(1.0, knee_pct / share_pct)
            points[(rows, share_pct)] = LatencyPoint(ms, ms, ms, 10)
    return surface(Profile("m", "digest", "test", 0, 0, points), "median_ms")


def ends_ms(batches: Sequence[RunningBatch]) -> list[float]:
    """When batches that begin together end."""
    clock = SimClock()
    progress = RunningBatches(clock, None, equal_rows)
    ends: dict[int, float] = {}
    for index, busy in enumerate(batches):
        alone_ms = busy.latency.latency_ms(busy.rows, busy.share_pct)
        progress.begin(
            f"p{index}", busy, alone_ms, lambda at=index: ends.setdefault(at, clock.now_ms())
        )
    clock.run(1e6)
    return [ends[index] for index in range(len(batches))]


@pytest.mark.parametrize("workers", [1, 2, 4, 8, 16, 32, 64])
def test_workers_of_256_rows_in_all_take_what_one_batch_takes(workers: int) -> None:
    """E2bird Figure 7: flat from one worker of 256 rows to 64 workers of 4."""
    latency = saturating(100)
    batches = [RunningBatch("m", 256 // workers, 100, latency)] * workers
    assert ends_ms(batches) == [pytest.approx(256.0)] * workers


@pytest.mark.parametrize(("share_pct", "most"), [(25, 8), (40, 6)])
def test_beyond_100_percent_throughput_stays_and_latency_climbs(share_pct: int, most: int) -> None:
    """Primitives paper, Figures 12a and 12b: instances of AlexNet at 25 %, ResNet-50 at 40 %."""
    latency = saturating(share_pct)
    full = 100 // share_pct
    before = full / max(ends_ms([RunningBatch("m", 8, share_pct, latency)] * full))
    last_ms = 0.0
    for count in range(full + 1, most + 1):
        took_ms = max(ends_ms([RunningBatch("m", 8, share_pct, latency)] * count))
        assert count / took_ms <= before * (100 / share_pct / full) * 1.05
        assert took_ms > last_ms
        last_ms = took_ms


def test_models_on_default_mps_share_once_their_needs_exceed_the_gpu() -> None:
    """D-STACK Figure 11a, fixed batch: two models do well, each more takes from all."""
    knees = (40, 50, 30, 20, 30, 40, 50)
    took_ms = []
    for count in (2, 3, 4, 7):
        batches = [RunningBatch(f"m{i}", 16, 100, saturating(knees[i])) for i in range(count)]
        took_ms.append(ends_ms(batches)[0])
    assert took_ms[0] == pytest.approx(16.0)
    assert took_ms == sorted(took_ms)
    assert took_ms[-1] > 1.5 * took_ms[0]


def test_gathering_on_the_host_is_what_gpu_dma_saves() -> None:
    """Primitives paper, section V-B: about a millisecond of a core's time for eight images."""
    images = {"m": Transfer(602_112, 4_000)}
    with_dma, without = (
        physics_of(GPU_KINDS["h100"], images).link,
        physics_of(GPU_KINDS["v100"]).link,
    )
    assert with_dma is not None
    assert without is not None
    gather_ms = without.gathered_ms(8 * 602_112, 8) - without.copied_ms(8 * 602_112)
    assert gather_ms == pytest.approx(2_506_216 / 2.4e6)
    assert with_dma.gathered_ms(8 * 602_112, 8) < 0.5


def test_many_small_copies_are_nearly_one_large_one() -> None:
    """E2bird section 5.3, Figure 7: 256 pictures one by one cost less than a millisecond more."""
    link = physics_of(GPU_KINDS["titan-rtx"]).link
    assert link is not None
    apart_ms = 256 * link.copied_ms(602_112)
    assert 0.0 < apart_ms - link.copied_ms(256 * 602_112) < 1.0


def test_every_kind_has_a_board_and_a_mechanism() -> None:
    assert set(BOARDS) == set(GPU_KINDS)
    assert {board.mechanism for board in BOARDS.values()} <= set(MECHANISMS)
