"""The contract of ``Device``: every implementation passes every test here."""

from collections.abc import Callable, Iterator
from itertools import count, pairwise
from pathlib import Path

import pytest

from interlace.core.hardware import Trait
from interlace.core.messages import (
    CopyInputs,
    CreatePartition,
    Load,
    PartitionLost,
    ReleasePartition,
    Run,
    Unload,
    Work,
    WorkFinished,
)
from interlace.core.model import Model
from interlace.core.request import Batch
from tests.contracts.stands import (
    QUICK,
    SLOW,
    AnsweringStand,
    CpuStand,
    SimulatedStand,
    Stand,
    ahead_stand,
    crowded_stand,
)
from tests.device.cuda.rig import CudaStand, stand_of

#: One line makes another implementation keep the contract.
STANDS: dict[str, Callable[[Path], Stand]] = {
    "cpu": CpuStand,
    "simulated": SimulatedStand,
    "simulated, crowded": crowded_stand,
    "simulated, ahead": ahead_stand,
    "simulated, in real time": AnsweringStand,
    "simulated, in real time, ahead": lambda folder: AnsweringStand(folder, ahead_ms=1.0),
    **{f"cuda, {mechanism}": stand_of(mechanism) for mechanism in ("green", "streams", "mps")},
}


@pytest.fixture(params=list(STANDS))
def stand(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stand]:
    made = STANDS[request.param](tmp_path)
    for known in (QUICK, SLOW):
        made.device.register(known)
    yield made
    made.close()


BATCHES = count(1)


def batch(stand: Stand, known: Model, partition: str = "p", requests: int = 1) -> Run:
    members = tuple(stand.request(known, rows=1 + place) for place in range(requests))
    rows = sum(member.rows for member in members)
    return Run(stand.device.gpu.id, partition, Batch(next(BATCHES), known.key, members, rows))


def ends_of(stand: Stand, work: Work) -> list[WorkFinished]:
    return [finished for finished in stand.finished if finished.work is work]


def end_of(stand: Stand, work: Work) -> WorkFinished:
    """Do a piece of work and wait for its one end."""
    stand.do(work)
    stand.wait(lambda: bool(ends_of(stand, work)))
    (finished,) = ends_of(stand, work)
    return finished


def failure_of(stand: Stand, work: Work) -> str:
    finished = end_of(stand, work)
    assert finished.failure is not None
    assert finished.outputs == ()
    return finished.failure.detail


def ready(stand: Stand, partition: str = "p", *models: Model) -> str:
    """A partition with these models, ``QUICK`` if none is named."""
    gpu = stand.device.gpu
    assert end_of(stand, CreatePartition(gpu.id, partition, gpu.shares_pct[0])).failure is None
    for known in models or (QUICK,):
        assert end_of(stand, Load(gpu.id, partition, known.key)).failure is None
    return partition


def test_the_accelerator_offers_shares_in_order_up_to_all(stand: Stand) -> None:
    shares = stand.device.gpu.shares_pct
    assert list(shares) == sorted(set(shares))
    assert shares[-1] == 100


def test_a_carve_reports_its_units(stand: Stand) -> None:
    gpu = stand.device.gpu
    for place, share in enumerate(gpu.shares_pct):
        finished = end_of(stand, CreatePartition(gpu.id, f"p{place}", share))
        assert finished.failure is None
        assert len(set(finished.units)) == len(finished.units) == stand.units(share)


def test_a_load_reports_what_is_resident(stand: Stand) -> None:
    ready(stand)
    (load,) = [f for f in stand.finished if isinstance(f.work, Load)]
    assert load.resident_bytes >= 0


def test_a_batch_gives_outputs_for_each_request(stand: Stand) -> None:
    ready(stand)
    work = batch(stand, QUICK, requests=3)
    finished = end_of(stand, work)
    assert finished.failure is None
    assert len(finished.outputs) == 3
    assert finished.timing.infer_ms > 0
    stand.device.free(work.batch.id)


def test_work_ends_later_and_once(stand: Stand) -> None:
    ready(stand)
    gpu = stand.device.gpu.id
    works: list[Work] = [
        batch(stand, QUICK),
        batch(stand, QUICK, "nowhere"),
        Unload(gpu, "p", QUICK.key),
        batch(stand, QUICK),
        ReleasePartition(gpu, "p"),
        CreatePartition(gpu, "q", 100),
    ]
    for work in works:
        before = len(stand.finished)
        stand.do(work)
        assert len(stand.finished) == before  # never inside ``do``
    stand.wait(lambda: all(ends_of(stand, work) for work in works))
    stand.pause()
    assert [len(ends_of(stand, work)) for work in works] == [1] * len(works)


def test_impossible_work_is_a_failure_not_an_exception(stand: Stand) -> None:
    gpu = stand.device.gpu.id
    for work in (
        Load(gpu, "nowhere", QUICK.key),
        Unload(gpu, "nowhere", QUICK.key),
        ReleasePartition(gpu, "nowhere"),
        batch(stand, QUICK, "nowhere"),
    ):
        assert "nowhere" in failure_of(stand, work)
    assert "7" in failure_of(stand, CreatePartition(gpu, "p", 7))
    ready(stand)
    assert "p" in failure_of(stand, CreatePartition(gpu, "p", 100))
    assert "nobody/1#0" in failure_of(stand, Load(gpu, "p", "nobody/1#0"))
    assert SLOW.key in failure_of(stand, batch(stand, SLOW))
    assert end_of(stand, batch(stand, QUICK)).failure is None


def test_work_of_a_partition_ends_in_the_order_given(stand: Stand) -> None:
    ready(stand, "p", QUICK, SLOW)
    works = [batch(stand, known) for known in (SLOW, QUICK, QUICK, SLOW, QUICK)]
    for work in works:
        stand.do(work)
    stand.wait(lambda: bool(ends_of(stand, works[-1])))
    ran = [finished.work for finished in stand.finished if isinstance(finished.work, Run)]
    assert ran == works


def test_batches_follow_each_other_by_the_accelerators_clock(stand: Stand) -> None:
    ready(stand, "p", QUICK, SLOW)
    works = [batch(stand, known) for known in (SLOW, QUICK, SLOW)]
    for work in works:
        stand.do(work)
    stand.wait(lambda: bool(ends_of(stand, works[-1])))
    times = [finished.timing for work in works for finished in ends_of(stand, work)]
    assert len(times) == 3
    for before, after in pairwise(times):
        assert before.began_ns <= before.ended_ns <= after.began_ns
    if stand.device.gpu.ahead_ms:  # what begins by itself says when it did
        assert times[0].began_ns < times[0].ended_ns


def test_a_slow_partition_does_not_hold_up_another(stand: Stand) -> None:
    ready(stand, "p", SLOW)
    ready(stand, "q", QUICK)
    slow, quick = batch(stand, SLOW, "p"), batch(stand, QUICK, "q")
    stand.do(slow)
    assert end_of(stand, quick).failure is None
    assert not ends_of(stand, slow)


def test_carving_and_loading_overlap_with_serving(stand: Stand) -> None:
    ready(stand, "p")
    gpu = stand.device.gpu.id
    carve, load = CreatePartition(gpu, "q", 100), Load(gpu, "q", QUICK.key)
    served = 0
    for work in (carve, load):
        stand.do(work)
        while not ends_of(stand, work):
            assert end_of(stand, batch(stand, QUICK, "p")).failure is None
            served += 1
        assert ends_of(stand, work)[0].failure is None
    assert served > 1
    assert end_of(stand, batch(stand, QUICK, "q")).failure is None
    assert end_of(stand, ReleasePartition(gpu, "p")).failure is None
    assert end_of(stand, batch(stand, QUICK, "q")).failure is None
    assert stand.lost == []


def test_several_models_share_a_partition_and_leave_it(stand: Stand) -> None:
    ready(stand, "p", QUICK, SLOW)
    gpu = stand.device.gpu.id
    assert end_of(stand, Unload(gpu, "p", SLOW.key)).failure is None
    assert SLOW.key in failure_of(stand, batch(stand, SLOW))
    assert end_of(stand, batch(stand, QUICK)).failure is None
    assert end_of(stand, Load(gpu, "p", SLOW.key)).failure is None
    assert end_of(stand, batch(stand, SLOW)).failure is None


def test_a_released_name_can_be_carved_again(stand: Stand) -> None:
    ready(stand)
    assert end_of(stand, ReleasePartition(stand.device.gpu.id, "p")).failure is None
    assert "p" in failure_of(stand, batch(stand, QUICK))
    ready(stand)
    assert end_of(stand, batch(stand, QUICK)).failure is None
    assert stand.lost == []


def test_a_death_ends_all_work_and_is_told_once(stand: Stand) -> None:
    ready(stand, "p", SLOW, QUICK)
    ready(stand, "q", QUICK)
    seen_when_lost: list[int] = []
    works: list[Work] = [batch(stand, SLOW), batch(stand, QUICK), batch(stand, QUICK)]

    def ended() -> int:
        return sum(len(ends_of(stand, work)) for work in works)

    def on_event(lost: PartitionLost) -> None:
        stand.lost.append(lost)
        if lost.partition == "p":
            seen_when_lost.append(ended())

    stand.device.on_event(on_event)
    for work in works:
        stand.do(work)
    stand.pause()
    stand.kill("p")
    gone = ["p", "q"] if stand.die_together() else ["p"]
    stand.wait(lambda: len(stand.lost) == len(gone))
    assert seen_when_lost == [3]
    failures = [ends_of(stand, work)[0].failure for work in works]
    assert all(failure is not None and failure.fatal for failure in failures)
    assert sorted(lost.partition for lost in stand.lost) == gone
    neighbour = end_of(stand, batch(stand, QUICK, "q")).failure
    assert (neighbour is not None) == stand.die_together()
    stand.pause()
    assert len(stand.lost) == len(gone) and ended() == 3


def test_a_dead_partition_is_replaced(stand: Stand) -> None:
    ready(stand)
    stand.kill("p")
    stand.wait(lambda: bool(stand.lost))
    assert "p" in failure_of(stand, batch(stand, QUICK))
    ready(stand)
    assert end_of(stand, batch(stand, QUICK)).failure is None


def test_a_replacement_can_be_asked_for_where_the_loss_is_told(stand: Stand) -> None:
    ready(stand)
    gpu = stand.device.gpu
    carve = CreatePartition(gpu.id, "p", gpu.shares_pct[0])
    stand.device.on_event(lambda lost: stand.do(carve))
    stand.kill("p")
    stand.wait(lambda: bool(ends_of(stand, carve)))
    assert ends_of(stand, carve)[0].failure is None


def test_freeing_what_holds_nothing_passes(stand: Stand) -> None:
    stand.device.free(123456)
    ready(stand)
    work = batch(stand, QUICK)
    end_of(stand, work)
    for _ in range(2):
        stand.device.free(work.batch.id)
    assert end_of(stand, batch(stand, QUICK)).failure is None


def test_a_forgotten_model_cannot_be_loaded(stand: Stand) -> None:
    ready(stand)
    key = "late/1#0"
    stand.device.forget(key)
    assert key in failure_of(stand, Load(stand.device.gpu.id, "p", key))


def test_closing_ends_what_is_unfinished(stand: Stand) -> None:
    ready(stand, "p", SLOW)
    works = [batch(stand, SLOW) for _ in range(3)]
    for work in works:
        stand.do(work)
    stand.pause()
    stand.device.close()
    stand.pause()
    for work in works:
        (finished,) = ends_of(stand, work)
        assert finished.failure is not None
    assert stand.lost == []  # an end that was asked for is no loss
    stand.device.close()
    late = batch(stand, SLOW)
    assert failure_of(stand, late)


def test_staged_inputs_are_there_later_and_once_and_a_window_of_them_runs(stand: Stand) -> None:
    ready(stand)
    gpu = stand.device.gpu.id
    members = tuple(stand.request(QUICK, 1) for _ in range(3))
    if isinstance(stand, CudaStand) and Trait.INPUT_POOL not in stand.device.gpu.traits:
        assert "no ring" in failure_of(stand, CopyInputs(gpu, members[0], 0, 8))
        return
    stages = [CopyInputs(gpu, request, slot + 1, 8) for slot, request in enumerate(members)]
    for stage in stages:
        stand.do(stage)
    assert not [ended for ended in stand.finished if isinstance(ended.work, CopyInputs)]
    stand.wait(lambda: all(ends_of(stand, stage) for stage in stages))
    ended = [finished.work for finished in stand.finished if isinstance(finished.work, CopyInputs)]
    assert ended == stages, "in the order asked for, each once"
    run = Run(gpu, "p", Batch(next(BATCHES), QUICK.key, members, 3, slot=1))
    finished = end_of(stand, run)
    assert finished.failure is None
    assert len(finished.outputs) == 3
    stand.device.free(run.batch.id)
    stand.device.close()
    late = CopyInputs(gpu, members[0], 0, 8)
    assert "closed" in failure_of(stand, late)


def test_padding_takes_as_long_and_gives_nobody_more(stand: Stand) -> None:
    ready(stand)
    members = (stand.request(QUICK, 1), stand.request(QUICK, 2))
    batch_of = Batch(next(BATCHES), QUICK.key, members, 3, padded_rows=8)
    finished = end_of(stand, Run(stand.device.gpu.id, "p", batch_of))
    assert finished.failure is None
    assert len(finished.outputs) == 2
    stand.device.free(batch_of.id)
