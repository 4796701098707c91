"""GPUs whose parts differ in size: fewer atoms, fewer shares, and plans that keep to them."""

from itertools import combinations_with_replacement

import pytest

from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.hardware import Gpu
from interlace.device.cuda.driver.api import CudaError
from interlace.device.cuda.green_contexts.atoms import Atoms, best_split
from interlace.device.cuda.green_contexts.gpu import green_gpu
from interlace.device.cuda.green_contexts.lanes import GreenLanes, ladder
from interlace.packing.layouts import layouts
from tests.device.cuda.backends import FIFTEEN, FOURTEEN
from tests.device.cuda.fake.driver import FakeDriver
from tests.device.cuda.rig import FOUND, cuda_rig
from tests.device.models import model

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


def test_a_refused_way_leaves_the_others() -> None:
    driver = FakeDriver()
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


def _gpu(atoms: Atoms) -> Gpu:
    return green_gpu(FOUND, "gpu0", atoms)


@pytest.mark.parametrize(
    ("backend", "atoms"), [("fifteen", Atoms(15, 8, 12)), ("fourteen", Atoms(14, 8, 20))]
)
def test_a_device_with_an_uneven_gpu_serves_at_every_share(
    backend: str, atoms: Atoms, caplog: pytest.LogCaptureFixture
) -> None:
    gpu = _gpu(atoms)
    backend = f"tests.device.cuda.backends:{backend}"
    rig = cuda_rig("green", gpu=gpu, backend=backend)
    double = model("double")
    try:
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
    finally:
        rig.close()


def test_a_device_that_was_planned_otherwise_says_so() -> None:
    rig = cuda_rig("green", backend="tests.device.cuda.backends:fifteen")
    try:
        failure = rig.carve("p", share_pct=96).failure
        assert failure is not None
        assert "cuts it into 15 blocks of 8 SMs, but plans are made for 16 of 8" in failure.detail
    finally:
        rig.close()
