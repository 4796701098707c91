"""Inputs staged into a ring: windows without a copy, several workers at once, padding."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest

from interlace.core.messages import CopyInputs, Run, WorkFinished
from interlace.core.model import Model
from interlace.core.request import Batch, Request
from tests.device.cpu.conftest import MakeRig
from tests.device.cpu.rig import GPU, Rig
from tests.device.models import model, tensor

DOUBLE = model("double")
WHERE = model("where", outputs=(tensor("y", "INT64", 2),))
PIDS = model("pids", outputs=(tensor("y", "FP64", 3),))
_FD_BITS = 16
SLOTS = 8


def staged(rig: Rig, request: Request, slot: int) -> WorkFinished:
    finished = rig.end_of(CopyInputs(GPU, request, slot, SLOTS))
    assert finished.failure is None, finished.failure
    return finished


def window(requests: Sequence[Request], slot: int, number: int, name: str = "p") -> Run:
    rows = sum(one.rows for one in requests)
    return Run(GPU, name, Batch(number, requests[0].model, tuple(requests), rows, slot=slot))


def ring(rig: Rig, known: Model) -> tuple[int, int]:
    """Inode of the memory that a model's ring lies in, and its size."""
    arena = rig.device._pools._rings[known.key].arena
    return arena.number >> _FD_BITS, arena.size_bytes


@pytest.fixture
def rig(make_rig: MakeRig) -> Rig:
    return make_rig()


def test_a_batch_is_a_window_of_the_ring_without_a_copy(rig: Rig) -> None:
    rig.serve(WHERE)
    requests = [rig.floats(WHERE, [float(i)] * 4) for i in range(4)]
    for slot, one in enumerate(requests):
        staged(rig, one, slot + 2)
    finished = rig.end_of(window(requests[1:], 3, 900))
    inode, _ = ring(rig, WHERE)
    assert rig.values(finished) == [[[inode, 3 * 4 * 4]]] * 3, "third slot, 4 floats a row"
    gathered = rig.run(*requests[1:])
    assert rig.values(gathered)[0][0][0] != inode, "without a window rows are gathered elsewhere"


def test_an_output_that_is_its_input_leaves_the_ring(rig: Rig) -> None:
    known = rig.serve(model("identity"))
    first, second = rig.floats(known, [1.0, 2.0]), rig.floats(known, [8.0, 9.0])
    staged(rig, first, 0)
    finished = rig.end_of(window((first,), 0, 902))
    staged(rig, second, 0)  # the slot is used again before the reply is delivered
    assert rig.values(finished) == [[[1.0, 2.0]]]


def test_large_inputs_are_copied_beside_the_loop_and_in_order(rig: Rig) -> None:
    rig.serve(DOUBLE)
    row = np.ones((1, 1 << 18), np.float32)
    requests = [
        rig.request(DOUBLE, rig.tensor("x", "FP32", row * number)) for number in range(1, 7)
    ]
    works = [CopyInputs(GPU, one, slot, SLOTS) for slot, one in enumerate(requests)]
    for work in works:
        rig.do(work)
    assert not [one for one in rig.finished if isinstance(one.work, CopyInputs)], (
        "not inside ``do``"
    )
    rig.wait(lambda: sum(isinstance(one.work, CopyInputs) for one in rig.finished) == len(works))
    ended = [one for one in rig.finished if isinstance(one.work, CopyInputs)]
    assert [one.work for one in ended] == works
    assert all(one.failure is None for one in ended)
    finished = rig.end_of(window(requests, 0, 903))
    tops = [rig.read(tensors[0])[0, 0] for tensors in finished.outputs]
    assert tops == [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]


def test_workers_run_windows_of_one_ring_at_the_same_time(rig: Rig) -> None:
    for name in ("one", "two", "four"):
        assert rig.carve(name, 100).failure is None
        assert rig.load(PIDS, name).failure is None
    requests = [rig.floats(PIDS, [float(i)]) for i in range(7)]
    for slot, one in enumerate(requests):
        staged(rig, one, slot)
    runs = [
        window(requests[:4], 0, 904, "four"),
        window(requests[4:6], 4, 905, "two"),
        window(requests[6:], 6, 906, "one"),
    ]
    for run in runs:
        rig.do(run)
    rig.wait(lambda: sum(isinstance(one.work, Run) for one in rig.finished) == 3)
    facts = {}
    for finished in rig.finished:
        if isinstance(finished.work, Run):
            assert finished.failure is None, finished.failure
            pid, began_s, ended_s = rig.read(finished.outputs[0][0])[0].tolist()
            facts[pid] = (began_s, ended_s)
    assert len(facts) == 3, "each in a process of its own"
    for one, other in combinations(facts.values(), 2):
        assert max(one[0], other[0]) < min(one[1], other[1]), "side by side"


def test_padding_is_executed_and_nobody_gets_it(rig: Rig) -> None:
    rig.serve(DOUBLE)
    requests = (rig.floats(DOUBLE, [1.0, 2.0]), rig.floats(DOUBLE, [3.0, 4.0]))
    batch = Batch(907, DOUBLE.key, requests, 2, padded_rows=8)
    finished = rig.end_of(Run(GPU, "p", batch))
    assert rig.values(finished) == [[[2.0, 4.0]], [[6.0, 8.0]]]
    counted = model("count", outputs=(tensor("y", "INT64", 1),))
    assert rig.load(counted).failure is None
    one = rig.floats(counted, [1.0, 2.0])
    finished = rig.end_of(Run(GPU, "p", Batch(908, counted.key, (one,), 1, padded_rows=8)))
    assert rig.values(finished) == [[[8]]]


def test_impossible_stages_fail_and_harm_nobody(rig: Rig) -> None:
    rig.serve(DOUBLE)
    request = rig.floats(DOUBLE, [1.0, 2.0], [3.0, 4.0])
    late = rig.end_of(CopyInputs(GPU, request, SLOTS - 1, SLOTS))
    assert late.failure is not None and "slot 7 for 2 rows in 8 slots" in late.failure.detail
    assert not late.failure.fatal
    staged(rig, request, 0)
    assert rig.values(rig.end_of(window((request,), 0, 909))) == [[[2.0, 4.0], [6.0, 8.0]]]


def test_a_ring_takes_another_shape_and_goes_with_its_model(rig: Rig) -> None:
    rig.serve(WHERE)
    small = rig.floats(WHERE, [1.0])
    staged(rig, small, 0)
    first = ring(rig, WHERE)
    wide = rig.floats(WHERE, [1.0] * 5000)
    staged(rig, wide, 0)
    assert ring(rig, WHERE) != first
    rig.device.forget(WHERE.key)
    assert WHERE.key not in rig.device._pools._rings


def test_closing_ends_stages_that_are_on_their_way(make_rig: MakeRig) -> None:
    rig = make_rig()
    row = np.ones((1, 1 << 20), np.float32)
    request = rig.request(DOUBLE, rig.tensor("x", "FP32", row))
    works = [CopyInputs(GPU, request, slot, SLOTS) for slot in range(4)]
    for work in works:
        rig.do(work)
    rig.device.close()
    rig.pause(0.05)
    assert len([one for one in rig.finished if isinstance(one.work, CopyInputs)]) == 4
    after = rig.end_of(CopyInputs(GPU, request, 0, SLOTS))
    assert after.failure is not None and "closed" in after.failure.detail
