"""Kinds of GPU: shares that exist, layouts that may stand side by side."""

from itertools import combinations_with_replacement

import pytest

from interlace.core.gpu_kinds import GPU_KINDS, uniform_fleet
from interlace.core.hardware import Gpu

MIG, H100 = GPU_KINDS["a100-mig"], GPU_KINDS["h100"]
kinds = pytest.mark.parametrize("gpu", GPU_KINDS.values(), ids=list(GPU_KINDS))


@kinds
def test_shares_ascend_to_the_whole(gpu: Gpu) -> None:
    assert list(gpu.shares_pct) == sorted(set(gpu.shares_pct))
    assert gpu.shares_pct[-1] == 100
    assert gpu.legal([100]) and gpu.legal([])
    assert not gpu.legal([100, gpu.shares_pct[0]])
    assert not gpu.legal([1])
    assert gpu.id == ""


@kinds
def test_what_stands_side_by_side_is_at_most_the_whole(gpu: Gpu) -> None:
    for cut in combinations_with_replacement(gpu.shares_pct, 3):
        if gpu.legal(cut):
            assert sum(gpu.fraction(share) for share in cut) <= 1 + 1e-12
    assert gpu.fraction(100) == 1.0


def test_units_and_bytes_are_those_that_the_papers_used() -> None:
    """D-STACK's testbed and cluster; E2bird Table 5; NVIDIA's figures of the 2080 Ti."""
    assert (GPU_KINDS["v100"].units, GPU_KINDS["v100"].memory_bytes) == (80, 16 * 10**9)
    assert (GPU_KINDS["t4"].units, GPU_KINDS["t4"].memory_bytes) == (40, 16 * 10**9)
    assert GPU_KINDS["titan-rtx"].units == 72
    assert GPU_KINDS["2080ti"].units == 68


def test_mig_layouts_are_nvidias() -> None:
    """The largest sets of instances of an A100, by compute slices (NVIDIA MIG user guide)."""
    slices = {share: round(MIG.fraction(share) * 7) for share in MIG.shares_pct}
    assert list(slices.values()) == [1, 2, 3, 4, 7]
    assert {tuple(sorted(slices[s] for s in layout)) for layout in MIG.layouts} == {
        (7,),
        (3, 4),
        (1, 2, 4),
        (1, 1, 1, 4),
        (3, 3),
        (2, 2, 3),
        (1, 1, 2, 3),
        (1, 1, 1, 1, 3),
        (1, 2, 2, 2),
        (1, 1, 1, 2, 2),
        (1, 1, 1, 1, 1, 2),
        (1, 1, 1, 1, 1, 1, 1),
    }


def test_mig_instances_that_cannot_be_placed_are_illegal() -> None:
    one, two, three, four, seven = MIG.shares_pct
    assert not MIG.legal([four, two, two]), "4g takes slices 0 to 3, two 2g do not fit behind it"
    assert not MIG.legal([four, four])
    assert not MIG.legal([three, three, one]), "two 3g take all of the memory"
    assert not MIG.legal([two] * 4)
    assert not MIG.legal([seven, one])


def test_mig_instances_have_memory_of_their_own() -> None:
    gigabytes = {share: size / 10**9 for share, size in MIG.walls}
    assert list(gigabytes.values()) == [10, 20, 40, 40, 80]
    assert set(gigabytes) == set(MIG.shares_pct)
    for layout in MIG.layouts:
        assert sum(gigabytes[share] for share in layout) <= 80


def test_green_contexts_are_blocks_of_eight_sms() -> None:
    blocks = H100.shares_pct[:-1]
    assert blocks == tuple(int(100 * 8 * count / 132) for count in range(1, 17))
    assert H100.legal([blocks[0]] * 16)
    assert not H100.legal([blocks[0]] * 17)
    assert not H100.legal([7])
    assert GPU_KINDS["h200"].shares_pct == H100.shares_pct
    assert GPU_KINDS["h200"].memory_bytes > H100.memory_bytes


def test_a_fleet_is_the_kind_many_times() -> None:
    found = uniform_fleet(GPU_KINDS["t4"], 3)
    assert [gpu.id for gpu in found.gpus] == ["gpu0", "gpu1", "gpu2"]
    assert {gpu.kind for gpu in found.gpus} == {"t4"}
    assert found.gpu("gpu1").units == 40
    with pytest.raises(KeyError):
        found.gpu("gpu3")
    assert uniform_fleet(GPU_KINDS["t4"], 0).gpus == ()
