"""Kinds of GPU: shares that exist, layouts that may stand side by side."""

from __future__ import annotations

import pytest

from interlace.core.kinds import KINDS, fleet


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_shares_ascend_to_the_whole(kind: object) -> None:
    gpu = KINDS[kind.kind]  # type: ignore[attr-defined]
    assert list(gpu.shares_pct) == sorted(set(gpu.shares_pct))
    assert gpu.shares_pct[-1] == 100
    assert gpu.legal([100])
    assert not gpu.legal([100, gpu.shares_pct[0]])


def test_mig_layouts_are_nvidias() -> None:
    mig = KINDS["a100-mig"]
    one, two, three, four, seven = mig.shares_pct
    assert mig.legal([three, three])
    assert mig.legal([four, three])
    assert mig.legal([two, two, two, one])
    assert mig.legal([one] * 7)
    assert not mig.legal([four, two, two]), "4g takes slices 0 to 3, two 2g do not fit behind it"
    assert not mig.legal([three, three, one]), "two 3g take all of the memory"
    assert not mig.legal([seven, one])
    assert [round(mig.fraction(s) * 7) for s in mig.shares_pct] == [1, 2, 3, 4, 7]
    assert all(sum(layout) <= 100 for layout in mig.layouts)


def test_green_contexts_are_blocks_of_eight_sms() -> None:
    h100 = KINDS["h100"]
    blocks = h100.shares_pct[:-1]
    assert len(blocks) == 132 // 8
    assert h100.legal([blocks[0]] * 16)
    assert not h100.legal([blocks[0]] * 17)
    assert not h100.legal([7])


def test_a_fleet_is_the_kind_many_times() -> None:
    found = fleet(KINDS["t4"], 3)
    assert [gpu.id for gpu in found.gpus] == ["gpu0", "gpu1", "gpu2"]
    assert {gpu.kind for gpu in found.gpus} == {"t4"}
