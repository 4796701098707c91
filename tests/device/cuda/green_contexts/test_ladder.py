"""Atoms and the ladder: what is disjoint, what fits, and what is chosen."""

from itertools import combinations, combinations_with_replacement

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.gpu_kinds import GPU_KINDS
from interlace.device.cuda.driver.api import Atom, CudaError, SmSplit
from interlace.device.cuda.green_contexts.atoms import Atoms, best_split, green_gpu, indices, span
from interlace.device.cuda.green_contexts.lanes import GreenLanes, Occupancy, choose, ladder, reuse
from interlace.packing.layouts import layouts
from tests.device.cpu.rig import refusal
from tests.device.cuda.backends import FIFTEEN, FOURTEEN
from tests.device.cuda.conftest import MakeRig
from tests.device.cuda.fake.driver import FakeDriver
from tests.device.cuda.rig import FOUND
from tests.device.models import model

H100 = Atoms(16, 8, 4)

gpus = st.builds(Atoms, st.integers(1, 24), st.sampled_from([2, 4, 8, 16]), st.integers(0, 7))


@st.composite
def crowds(draw: st.DrawFn) -> tuple[Atoms, int, list[int], list[int], list[int]]:
    """A GPU, a share, and masks that stay, leave, or are ready."""
    atoms = draw(gpus)
    masks = st.lists(st.integers(1, atoms.whole), max_size=5)
    share = draw(st.sampled_from(atoms.shares_pct))
    return atoms, share, draw(masks), draw(masks), draw(masks)


def overlap(atoms: Atoms, mask: int, masks: list[int]) -> int:
    return sum((mask & other).bit_count() for other in masks)


def test_an_h100_has_the_shares_that_planners_know() -> None:
    assert H100.shares_pct == GPU_KINDS["h100"].shares_pct
    assert [H100.sms(span(0, H100.size(share))) for share in (6, 48, 96)] == [8, 64, 128]
    assert H100.sms(H100.whole) == H100.units == 132


def test_atoms_are_read_from_what_the_driver_split() -> None:
    split = SmSplit((Atom(8, None), Atom(8, None)), Atom(4, None))
    assert Atoms.of(split) == Atoms(2, 8, 4)
    assert Atoms.of(SmSplit((), Atom(6, None))).shares_pct == (100,)
    with pytest.raises(ValueError, match="expected one size"):
        Atoms.of(SmSplit((Atom(8, None), Atom(6, None)), None))
    with pytest.raises(ValueError, match="without SMs"):
        Atoms.of(SmSplit((), None))


@given(gpus)
def test_a_share_is_granted_in_full_and_by_less_than_an_atom_more(atoms: Atoms) -> None:
    for share in atoms.shares_pct:
        sms = atoms.sms(choose(atoms, share, Occupancy()))
        assert share * atoms.units <= 100 * sms
        if share < 100:
            assert 100 * sms < (share + 1) * atoms.units
    assert list(atoms.shares_pct) == sorted(set(atoms.shares_pct))
    assert atoms.sms(atoms.whole) == atoms.units


@given(gpus, st.data())
def test_masks_are_disjoint_where_their_sms_are(atoms: Atoms, data: st.DataObject) -> None:
    one, other = (data.draw(st.integers(0, atoms.whole)) for _ in range(2))
    first, second = atoms.numbers(one), atoms.numbers(other)
    assert len(first) == len(set(first)) == atoms.sms(one)
    assert set(first) & set(second) == set(atoms.numbers(one & other))
    assert set(first) | set(second) == set(atoms.numbers(one | other))
    assert set(atoms.numbers(atoms.whole)) == set(range(atoms.units))


@given(gpus, st.data())
def test_holders_conserve_atoms(atoms: Atoms, data: st.DataObject) -> None:
    masks = data.draw(st.lists(st.integers(1, atoms.whole)))
    holders = atoms.holders(masks)
    assert sum(holders) == sum(mask.bit_count() for mask in masks)
    for one, count in enumerate(holders):
        assert count == sum(1 for mask in masks if one in indices(mask))


@given(gpus)
def test_the_ladder_has_both_of_each_pair_that_fills_the_gpu(atoms: Atoms) -> None:
    rungs = ladder(atoms)
    masks = [rung.mask for rung in rungs]
    assert len(set(masks)) == len(masks)
    assert rungs[0] == (100, atoms.whole)
    sizes = {share: size for share, size in atoms.sizes.items() if share < 100}
    for share, size in sizes.items():
        assert {rung.share_pct for rung in rungs if rung.mask.bit_count() == size} >= {share}
    parts = span(0, atoms.count)
    for size in range(1, atoms.count):
        left, right = span(0, size), span(size, atoms.count - size)
        assert left in masks
        assert right in masks
        assert not left & right
        assert left | right == parts


@given(crowds())
def test_a_choice_has_the_size_of_its_share_and_overlaps_least(
    crowd: tuple[Atoms, int, list[int], list[int], list[int]],
) -> None:
    atoms, share, staying, leaving, ready = crowd
    mask = choose(atoms, share, Occupancy(staying, leaving, ready))
    if share == 100:
        assert mask == atoms.whole
        return
    size = atoms.size(share)
    assert mask.bit_count() == size
    assert not mask & atoms.rest
    pairs = sorted(zip(atoms.holders(staying), atoms.holders(leaving), strict=True))
    if atoms.rest:
        pairs.remove((atoms.holders(staying)[-1], atoms.holders(leaving)[-1]))
    least = pairs[:size]
    assert overlap(atoms, mask, staying) == sum(stays for stays, _ in least)
    assert overlap(atoms, mask, leaving) == sum(leaves for _, leaves in least)


@given(st.lists(st.sampled_from(H100.shares_pct), max_size=16))
def test_partitions_of_at_most_100_percent_are_disjoint_on_an_h100(shares: list[int]) -> None:
    masks: list[int] = []
    for share in shares:
        if sum(H100.size(s) for s in shares[: len(masks) + 1]) > H100.count:
            break
        masks.append(choose(H100, share, Occupancy(masks)))
    if GPU_KINDS["h100"].legal(shares):
        assert len(masks) == len(shares)  # no legal set is refused for want of atoms
    assert all(not one & other for one, other in combinations(masks, 2))


@given(st.integers(1, 15))
def test_the_second_of_a_pair_takes_the_ready_rung_at_the_other_end(size: int) -> None:
    ready = [rung.mask for rung in ladder(H100)]
    share = {number: share for share, number in H100.sizes.items() if share < 100}
    one = choose(H100, share[size], Occupancy(ready=ready))
    assert one in (span(0, size), span(16 - size, size))
    other = choose(H100, share[16 - size], Occupancy([one], (), ready))
    assert other == span(0, 16) & ~one


def test_of_equals_one_that_is_carved_already_is_taken() -> None:
    scattered = 1 << 3 | 1 << 9
    assert choose(H100, 12, Occupancy([1], (), [scattered])) == scattered
    assert (
        choose(H100, 12, Occupancy([1 << 3], (), [scattered])) != scattered
    )  # but not at any price
    assert choose(H100, 12, Occupancy((), [1 << 3], [scattered])) != scattered


@given(crowds())
def test_what_is_ready_is_reused_with_the_least_overlap(
    crowd: tuple[Atoms, int, list[int], list[int], list[int]],
) -> None:
    atoms, share, staying, leaving, ready = crowd
    mask = reuse(atoms, share, Occupancy(staying, leaving, ready))
    size, parts = atoms.size(share), span(0, atoms.count)
    fitting = [one for one in ready if one.bit_count() == size and one & parts == one]
    if share == 100:
        fitting = [one for one in ready if one == atoms.whole]
    if mask is None:
        assert not fitting
        return
    assert mask in fitting
    cost = overlap(atoms, mask, staying), overlap(atoms, mask, leaving)
    if share < 100:
        pairs = [(overlap(atoms, one, staying), overlap(atoms, one, leaving)) for one in fitting]
        assert cost == min(pairs)


UNEVEN = pytest.mark.parametrize(
    ("clusters", "atoms"), [(FIFTEEN, Atoms(15, 8, 12)), (FOURTEEN, Atoms(14, 8, 20))]
)


def board(clusters: tuple[int, ...], mixes: bool) -> FakeDriver:
    driver = FakeDriver()
    driver.clusters, driver.mixes = clusters, mixes
    return driver


@UNEVEN
def test_the_split_that_leaves_the_fewest_sms_is_taken(
    clusters: tuple[int, ...], atoms: Atoms
) -> None:
    driver = board(clusters, mixes=False)
    found = best_split(driver)
    assert (Atoms.of(found), found.clusters) == (atoms, True)
    driver.mixes = True
    found = best_split(driver)
    assert (Atoms.of(found), found.clusters) == (Atoms(16, 8, 4), False)
    driver.clusters = (132,)
    found = best_split(driver)
    assert (Atoms.of(found), found.clusters) == (Atoms(16, 8, 4), True)
    driver.close()


def test_a_refused_way_leaves_the_others(driver: FakeDriver) -> None:
    driver.fail("split", "CUDA_ERROR_INVALID_VALUE", times=2)
    assert Atoms.of(best_split(driver)) == Atoms(8, 16, 4)
    driver.fail("split", "CUDA_ERROR_NOT_SUPPORTED", times=3)
    with pytest.raises(CudaError, match="NOT_SUPPORTED"):
        best_split(driver)
    driver.fail("split", "CUDA_ERROR_ILLEGAL_ADDRESS")
    with pytest.raises(CudaError, match="ILLEGAL_ADDRESS"):
        best_split(driver)


@UNEVEN
def test_lanes_of_uneven_gpus_are_disjoint(clusters: tuple[int, ...], atoms: Atoms) -> None:
    driver = board(clusters, mixes=False)
    green = GreenLanes(driver)
    assert green.blocks == (atoms.count, 8)
    assert green.prepare() == len(ladder(atoms)) - 1  # the whole GPU needs no context
    lanes = [green.carve(name, 42) for name in "ab"]
    assert [lane.sms for lane in lanes] == [56, 56]
    assert not driver.sms_of(lanes[0].stream) & driver.sms_of(lanes[1].stream)
    assert green.aside().sms == atoms.rest_sms
    green.close()
    driver.close()


def test_planners_are_given_what_the_lanes_can_do() -> None:
    even = green_gpu(FOUND, "gpu0")
    known = GPU_KINDS["h100"]
    for shares in combinations_with_replacement(even.shares_pct, 3):
        assert even.legal(shares) == known.legal(shares)
    assert layouts(even, (12, 24, 48)) == layouts(known, (12, 24, 48))
    uneven = green_gpu(FOUND, "gpu0", Atoms(14, 8, 20))
    for one in layouts(uneven, (12, 24, 48, 84, 100)):
        assert uneven.legal(one)
        assert sum(uneven.taken(share) for share in one) <= 14
    assert layouts(uneven, (48,)) == ((48,),)
    assert layouts(uneven, (100,)) == ((100,),)


@pytest.mark.parametrize(
    ("backend", "atoms"), [("fifteen", Atoms(15, 8, 12)), ("fourteen", Atoms(14, 8, 20))]
)
def test_a_device_with_an_uneven_gpu_serves_at_every_share(
    make_rig: MakeRig, backend: str, atoms: Atoms, caplog: pytest.LogCaptureFixture
) -> None:
    gpu = green_gpu(FOUND, "gpu0", atoms)
    backend = f"tests.device.cuda.backends:{backend}"
    rig = make_rig(gpu=gpu, backend=backend)
    double = model("double")
    for share_pct in gpu.shares_pct:
        name = f"p{share_pct}"
        carved = rig.carve(name, share_pct=share_pct)
        assert carved.failure is None
        wanted = 132 if share_pct == 100 else 8 * gpu.taken(share_pct)
        assert len(carved.units) == wanted
    for name in ("p6", f"p{gpu.shares_pct[-2]}", "p100"):
        assert rig.load(double, name).failure is None
        assert rig.values(rig.run(rig.floats(double, [1.0, 2.0]), name=name)) == [[[2.0, 4.0]]]
    took_s = rig.device.processes.running[0].took_s
    assert set(took_s) >= {"torch, CUDA and kernels", "lanes"}
    assert caplog.messages[0].startswith("gpu0: its process started in ")
    assert caplog.messages[0].endswith(f", in {atoms.count} blocks of 8 SMs")


def test_a_device_that_was_planned_otherwise_says_so(make_rig: MakeRig) -> None:
    rig = make_rig(backend="tests.device.cuda.backends:fifteen")
    assert "cuts it into 15 blocks of 8 SMs, but plans are made for 16 of 8" in refusal(
        rig.carve("p", share_pct=96)
    )
