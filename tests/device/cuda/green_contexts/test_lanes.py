"""Lanes on the fake driver: which SMs they have, what they give back, and in which order."""

from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from interlace.device.cuda.driver.api import CudaError
from interlace.device.cuda.green_contexts import lanes
from interlace.device.cuda.green_contexts.lanes import GreenLanes, ladder
from interlace.device.cuda.lanes import Lane
from interlace.device.cuda.streams import OneLane, StreamLanes
from tests.device.cuda.fake.driver import FakeDriver

REFUSED = "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"
BROKEN = "CUDA_ERROR_ILLEGAL_ADDRESS"
ALL = frozenset(range(132))


@pytest.fixture
def green(driver: FakeDriver) -> Iterator[GreenLanes]:
    lanes = GreenLanes(driver)
    yield lanes
    lanes.close()


def test_the_whole_gpu_is_a_plain_stream_with_the_rest(
    driver: FakeDriver, green: GreenLanes
) -> None:
    lanes = [green.carve(name, 100) for name in "abc"]  # workers side by side, each on all SMs
    assert len({lane.stream for lane in lanes}) == 3
    assert all(driver.sms_of(lane.stream) == ALL and lane.sms == 132 for lane in lanes)
    assert driver.calls.get("green", 0) == 0


def test_what_was_captured_stays_with_the_sms(green: GreenLanes) -> None:
    lane = green.carve("a", 48)
    lane.capture_stream = pool = object()
    green.release("a")
    assert lane.name is None
    again = green.carve("b", 48)
    assert again is lane
    assert (again.name, again.capture_stream) == ("b", pool)


def test_new_partitions_avoid_those_that_stay_not_those_that_leave(green: GreenLanes) -> None:
    stays, leaves = green.carve("stays", 48), green.carve("leaves", 48)
    new = [green.carve(name, 24, leaving={"leaves"}) for name in ("x", "y")]
    assert new[0].mask | new[1].mask == leaves.mask
    assert not (new[0].mask | new[1].mask) & stays.mask


def test_a_prepared_ladder_makes_carving_a_matter_of_choice(
    driver: FakeDriver, green: GreenLanes
) -> None:
    assert green.prepare() == len(ladder(green.atoms)) - 1 == 31
    assert green.prepare() == 31
    assert green.lanes == () and "stream" not in driver.calls
    for name, share in (("a", 36), ("b", 60)):
        green.carve(name, share)
    before = dict(driver.calls)
    assert (before["green"], before["stream"]) == (31, 2)
    green.release("a")
    green.carve("c", 36)
    assert driver.calls == before


def test_preparing_ends_where_the_driver_refuses(driver: FakeDriver, green: GreenLanes) -> None:
    driver.fail("green", REFUSED, skip=5)
    assert green.prepare() == 5
    assert green.carve("a", 6).sms == 8


def test_contexts_that_nobody_has_make_room(driver: FakeDriver, green: GreenLanes) -> None:
    driver.greens_max = 3
    assert green.prepare() == 3
    lanes = [green.carve(name, 30) for name in "abc"]
    assert [lane.sms for lane in lanes] == [40, 40, 40]
    assert not lanes[0].mask & lanes[1].mask and len(green.contexts.masks) == 3
    shared = green.carve("d", 30)  # no context can be made: one of its size has two lanes
    assert shared.mask in {lane.mask for lane in lanes}
    assert shared.stream not in {lane.stream for lane in lanes}
    with pytest.raises(CudaError, match="OUT_OF_MEMORY"):
        green.carve("e", 6)
    green.release("b")  # and nothing was captured there
    assert green.carve("e", 6).sms == 8
    assert len(green.contexts.masks) == 3


def test_the_lane_aside_keeps_its_context(driver: FakeDriver, green: GreenLanes) -> None:
    driver.greens_max = 2
    green.prepare()
    assert green.aside().sms == 4
    assert green.carve("a", 24).sms == 32
    with pytest.raises(CudaError, match="OUT_OF_MEMORY"):
        green.carve("b", 48)
    assert driver.sms_of(green.aside().stream) == set(range(128, 132))


def test_no_more_streams_than_queues_while_idle_lanes_can_go(green: GreenLanes) -> None:
    green.prepare()
    for share in green.atoms.shares_pct:
        green.carve("a", share)
        green.release("a")
    assert len(green.lanes) == 15
    for lane in green.lanes:
        lane.capture_stream = object()
    green.carve("a", 6)
    green.carve("b", 6)
    assert len(green.lanes) == 16


def test_no_more_lanes_than_allowed_are_made(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "LANES_MAX", 3)
    green = GreenLanes(driver)
    kept = [green.carve(name, 6) for name in "abc"]
    for lane in kept:
        lane.capture_stream = object()
    with pytest.raises(CudaError, match="there are 3 lanes already"):
        green.carve("d", 6)
    green.release("b")
    assert green.carve("d", 6) is kept[1]
    green.release("d")
    kept[1].capture_stream = None
    assert green.carve("e", 12).sms == 16
    assert len(green.lanes) == 3
    green.close()


def test_a_refused_partition_leaves_nothing_behind(driver: FakeDriver, green: GreenLanes) -> None:
    driver.fail("green", REFUSED)
    with pytest.raises(CudaError, match="green failed"):
        green.carve("a", 48)
    driver.grant = lambda sms: sms - 8
    with pytest.raises(CudaError, match="asked for 64 SMs, got 56"):
        green.carve("a", 48)
    driver.grant = lambda sms: sms
    assert green.lanes == () and driver.leftovers() == []
    driver.fail("stream", "CUDA_ERROR_OUT_OF_MEMORY", times=2)  # it is tried again where it can be
    with pytest.raises(CudaError, match="OUT_OF_MEMORY"):
        green.carve("a", 48)
    assert green.lanes == () and driver.leftovers() == ["1 green context(s)"]  # for the next one
    assert green.carve("a", 48).sms == 64


def test_a_broken_gpu_is_said_so(driver: FakeDriver) -> None:
    green = GreenLanes(driver)
    green.carve("a", 48)
    driver.fail("green", BROKEN)
    with pytest.raises(CudaError) as caught:
        green.prepare()
    assert caught.value.sticky
    with pytest.raises(CudaError, match=BROKEN):
        green.carve("b", 24)
    with pytest.raises(CudaError, match=BROKEN):
        green.close()
    green.close()  # nothing is left to close


def test_work_of_no_partition_has_the_sms_that_no_share_has(
    driver: FakeDriver, green: GreenLanes
) -> None:
    aside = green.aside()
    assert green.aside() is aside
    assert (aside.index, aside.sms) == (0, 4)
    lanes = [green.carve(name, 48) for name in "ab"]
    assert all(not driver.sms_of(aside.stream) & driver.sms_of(one.stream) for one in lanes)
    assert aside not in green.lanes


def test_work_of_no_partition_runs_anywhere_if_the_rest_is_refused(
    driver: FakeDriver, green: GreenLanes
) -> None:
    driver.fail("green", REFUSED)
    assert green.aside().sms == 132
    assert driver.sms_of(green.aside().stream) == ALL


def test_impossible_wishes_are_refused_in_words(green: GreenLanes) -> None:
    lane = green.carve("a", 48)
    with pytest.raises(ValueError, match="partition 'a' exists already"):
        green.carve("a", 48)
    with pytest.raises(ValueError, match="a share of 50 %"):
        green.carve("b", 50)
    with pytest.raises(ValueError, match="no partition 'b'"):
        green.release("b")
    with pytest.raises(ValueError, match="in use by partition 'a'"):
        green.retire(lane)
    green.release("a")
    green.retire(lane)
    with pytest.raises(ValueError, match="does not exist any more"):
        green.retire(lane)
    assert green.lanes == ()


class Changes(RuleBasedStateMachine):
    """Partitions come and go in any order; names, indices, SMs and accounts stay right."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = FakeDriver()
        self.green = GreenLanes(self.driver)
        self.names = iter(range(10**6))

    def used(self) -> list[Lane]:
        return [lane for lane in self.green.lanes if lane.name is not None]

    @rule(share=st.sampled_from([6, 12, 18, 24, 30, 36, 48, 60, 72, 90, 96, 100]))
    def carve(self, share: int) -> None:
        taken = self.green.atoms.holders(lane.mask for lane in self.used())
        free = sum(1 for count in taken[:16] if not count)
        name = str(next(self.names))
        lane = self.green.carve(name, share)
        overlapped = sum(taken[one] for one in range(16) if lane.mask >> one & 1)
        if share < 100 and self.green.atoms.size(share) <= free:
            assert overlapped == 0
        assert lane.sms * 100 >= share * 132

    @precondition(lambda self: self.used())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([lane.name for lane in self.used()]))
        assert name is not None
        self.green.release(name)

    @rule()
    def retire_one(self) -> None:
        idle = [lane for lane in self.green.lanes if lane.name is None]
        if idle:
            self.green.retire(idle[0])

    @rule(refused=st.sampled_from(["green", "stream"]))
    def fail(self, refused: str) -> None:
        before = self.green.lanes
        self.driver.fail(refused, REFUSED, times=99)
        try:
            self.green.carve("refused", 54)
        except CudaError:
            assert all(lane in before for lane in self.green.lanes)
        else:
            self.green.release("refused")
        self.driver._faults._planned.clear()

    @invariant()
    def every_lane_is_itself(self) -> None:
        lanes = self.green.lanes
        assert len({lane.index for lane in lanes}) == len(lanes)
        assert len({lane.stream for lane in lanes}) == len(lanes)
        assert all(self.driver.sms_of(lane.stream) == set(lane.units) for lane in lanes)
        assert all(len(lane.units) == lane.sms for lane in lanes)
        contexts = len(self.green.contexts.masks)
        there = [f"{len(lanes)} stream(s)"] if lanes else []
        there += [f"{contexts} green context(s)"] if contexts else []
        assert self.driver.leftovers() == there

    def teardown(self) -> None:
        self.green.close()
        assert self.driver.leftovers() == []
        self.driver.close()


Changes.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestChanges = Changes.TestCase


# --------------------------------------------------------------------------------- plain streams
def test_streams_share_all_sms_and_are_used_again(driver: FakeDriver) -> None:
    lanes = StreamLanes(driver)
    one, other = lanes.carve("a", 40), lanes.carve("b", 40, leaving={"a"})
    assert driver.sms_of(one.stream) == driver.sms_of(other.stream) == ALL
    assert (one.sms, one.share_pct, one.mask) == (132, 40, 0)
    lanes.release("a")
    again = lanes.carve("c", 70)
    assert (again, again.share_pct, again.name) == (one, 70, "c")
    assert lanes.aside() is lanes.aside()
    assert len({lanes.aside().stream, one.stream, other.stream}) == 3
    for share in (0, 101):
        with pytest.raises(ValueError, match="expected one of 1 to 100"):
            lanes.carve("d", share)
    with pytest.raises(ValueError, match="exists already"):
        lanes.carve("b", 10)
    lanes.release("b")
    lanes.retire(other)
    assert lanes.lanes == (one,)
    lanes.close()


def test_a_process_that_is_a_partition_has_one_lane(driver: FakeDriver) -> None:
    lanes = OneLane(driver)
    lane = lanes.carve("a", 40)
    assert (lane.sms, lane.share_pct) == (132, 40)
    with pytest.raises(ValueError, match="partition 'b': this process has its 1 already"):
        lanes.carve("b", 40)
    lanes.release("a")
    assert lanes.carve("b", 60) is lane
    lanes.close()
