"""Weights that come and go: no layer runs before they are there, whatever came and whenever."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.device.cuda.driver.api import CopyGroup, CudaError
from interlace.device.cuda.memory import weights_memory
from interlace.device.cuda.memory.weights_memory import WeightsMemory
from interlace.device.cuda.models import cold_layout
from tests.device.cuda.models.cold_rig import (
    ALL,
    EAGER,
    FIRST,
    LAST,
    SECOND,
    TABLE,
    WEIGHTED,
    stand,
)


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer a group, as far as may be, and layers in several pieces over peers."""
    monkeypatch.setattr(cold_layout, "LEAST_BYTES", 1)
    monkeypatch.setattr(cold_layout, "LAST_BYTES", 1)
    monkeypatch.setattr(weights_memory, "HALF_BYTES", 256)


@pytest.fixture(params=[False, True], ids=["graphs", "eager"])
def eager(request: pytest.FixtureRequest) -> Iterator[bool]:
    EAGER[:] = [True] * request.param
    yield request.param
    EAGER.clear()


def test_weights_are_laid_out_in_the_order_of_their_use_and_tables_last() -> None:
    with stand() as one:
        layout = one.load().layout
        begins = [layout.layers[at].begin for at in (FIRST, SECOND, LAST, TABLE)]
        assert begins == sorted(begins) and layout.layers[TABLE].table
        assert layout.window_bytes == layout.layers[TABLE].begin
        assert "places" not in layout.places, "indices stay"
        assert list(layout.groups[0]) == [0, TABLE]


def test_answers_are_right_with_nothing_something_and_all_of_it_there(eager: bool) -> None:
    with stand() as one:
        cold = one.load()
        assert bool(one.models[1].eager_because) == eager
        assert one.runs()
        for layers in ((TABLE,), (FIRST, LAST), tuple(ALL)):
            cold.fetch(layers)
            assert one.runs() and one.runs(rows=1) and one.runs(rows=3)
            one.settle()
            assert set(cold.held) == WEIGHTED & set(layers)
            cold.evict(tuple(cold.held))
            assert not one.memory.used_bytes and one.runs()


def test_the_first_bytes_leave_before_a_second_group_has_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with stand() as one:
        cold = one.load()
        done: list[str] = []
        take, copy = one.memory.take, one.driver.copy_groups

        def taken(sizes: Sequence[int]) -> Sequence[int | None]:
            done.append("place")
            return take(sizes)

        def copied(groups: Sequence[CopyGroup], stream: int) -> None:
            done.append("copy")
            copy(groups, stream)

        monkeypatch.setattr(one.memory, "take", taken)
        monkeypatch.setattr(one.driver, "copy_groups", copied)
        cold.fetch(tuple(ALL))
        assert done.count("copy") > 1
        assert done[: done.index("copy")] == ["place"]
        assert one.runs()


#: The own link and two peers, in turns.
BY_PEERS = {TABLE: 1, FIRST: 0, SECOND: 2, LAST: 1}


def test_no_layer_runs_before_its_weights_came_over_whichever_link(eager: bool) -> None:
    """Copies are held back one by one, on every stream; what was not copied is poison."""
    for peers, step in ((0, 1), (2, 1), (2, -1)):
        with stand(peers=peers) as one:
            cold = one.load()
            for stream in one.streams:
                one.driver.hold(stream)
            cold.fetch(tuple(ALL), BY_PEERS)
            ended: list[bool] = []
            begun = threading.Thread(target=lambda: ended.append(one.runs()))  # noqa: B023
            begun.start()
            time.sleep(0.05)
            while any(one.driver._streams.of(at, "").queue for at in one.streams):
                assert not ended, "it ended before the last copy"
                for stream in one.streams[::step]:
                    one.driver.run(stream, 1)
                time.sleep(0.005)
            begun.join(20)
            assert ended == [True] and not one.driver.misuses
            sizes = [sum(cold.layout.layers[at].nbytes for at in BY_PEERS if BY_PEERS[at] == link)
                     for link in range(1, peers + 1)]  # fmt: skip
            assert [one.driver.peers.link_bytes[link + 1] for link in range(peers)] == sizes
            for stream in one.streams:
                one.driver.let_go(stream)


def test_a_peers_link_carries_while_the_own_one_is_busy() -> None:
    with stand(peers=1) as one:
        first, second = one.load(1), one.load(2)
        first.fetch((FIRST,))
        one.driver.hold(one.memory.link)
        second.fetch(tuple(ALL), dict.fromkeys(ALL, 1))
        assert one.runs(2), "it waited for another model's copies"
        one.driver.let_go(one.memory.link)
        assert one.runs(1)


def test_without_a_peer_weights_come_over_the_own_link() -> None:
    notes: list[str] = []
    with stand() as one:
        lone = WeightsMemory(one.driver, 1 << 12, 1 << 12, 1, notes.append)
        assert not lone.paths and "own link" in notes[0]
        lone.close()
        one.load().fetch(tuple(ALL), BY_PEERS)
        assert one.runs() and set(one.driver.peers.link_bytes) == {0}


def test_a_place_given_back_on_the_way_is_not_written_twice() -> None:
    """What was on its way by a peer comes before what takes its place over the own link."""
    with stand(budget_bytes=8192, peers=1) as one:
        first, second = one.load(1), one.load(2)
        for stream in one.streams:
            one.driver.hold(stream)
        first.fetch(tuple(ALL), dict.fromkeys(ALL, 1))
        first.evict(tuple(ALL))
        second.fetch(tuple(ALL))
        one.driver.let_go(one.memory.link)
        time.sleep(0.05)
        for stream in one.streams:
            one.driver.let_go(stream)
        one.settle()
        assert one.runs(2) and one.runs(1)


@pytest.mark.parametrize(("links", "skip"), [({}, 2), *((BY_PEERS, skip) for skip in range(6))])
def test_a_copy_that_is_refused_leaves_nothing_behind(links: dict[str, int], skip: int) -> None:
    with stand(peers=2 if links else 0) as one:
        cold = one.load()
        one.driver.fail("copy", "CUDA_ERROR_INVALID_VALUE", skip=skip)
        with pytest.raises(CudaError):
            cold.fetch(tuple(ALL), links)
        assert not cold.held and not one.memory.used_bytes
        assert one.runs()
        cold.fetch(tuple(ALL), links)
        assert one.runs()


def test_another_lane_does_not_wait_for_a_load(eager: bool) -> None:
    with stand() as one:
        one.load(2, "q")
        one.load(1, "p").fetch((FIRST,))
        one.driver.hold(one.memory.link)
        one.models[1].cold.fetch((SECOND,))
        assert one.runs(2, "q")
        one.driver.let_go(one.memory.link)
        assert one.runs()


def test_two_models_share_a_window_and_take_turns_behind_each_other(eager: bool) -> None:
    with stand() as one:
        for seed in (1, 2):
            one.load(seed).fetch(tuple(ALL))
        assert len(one.memory._windows[one.lane()]) == 1
        for _ in range(3):
            first, second = one.start(1), one.start(2, rows=3)
            assert first() and second()


def test_a_place_is_taken_again_only_after_its_last_use() -> None:
    with stand(budget_bytes=8192) as one:
        first, second = one.load(1), one.load(2)
        first.fetch(tuple(ALL))
        one.settle()
        window = first.lanes[one.lane()].window  # type: ignore[attr-defined]
        one.driver.hold(window.stream)
        right = one.start(1)
        first.evict(tuple(ALL))
        second.fetch(tuple(ALL))
        time.sleep(0.05)
        one.driver.let_go(window.stream)
        assert right(), "its weights were overwritten before the window had them"
        assert one.runs(2) and one.runs(1)


def test_a_lane_that_comes_while_weights_go_does_not_end_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with stand() as one:
        cold = one.load()
        cold.fetch(tuple(ALL))
        assert one.runs()
        ((lane, there),) = cold.lanes.items()
        left = type(there).left

        def loads(of: Any, layers: Sequence[int]) -> None:
            cold.lanes[replace(lane, index=lane.index + 1)] = there  # the loader's thread
            left(of, layers)

        monkeypatch.setattr(type(there), "left", loads)
        cold.evict(tuple(cold.held))
        assert len(cold.lanes) == 2
        monkeypatch.undo()
        while len(cold.lanes) > 1:
            cold.lanes.popitem()
        assert not cold.held and one.runs()


def test_what_finds_no_place_stays_on_the_host_and_runs(eager: bool) -> None:
    with stand(budget_bytes=1024) as one:
        cold = one.load()
        cold.fetch(tuple(ALL))
        assert 0 < len(cold.held) < 4
        assert one.runs()


def test_a_group_is_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each copy costs microseconds beyond its bytes, whatever the sizes of layers."""
    monkeypatch.setattr(cold_layout, "LEAST_BYTES", 1 << 20)
    monkeypatch.setattr(cold_layout, "LAST_BYTES", 1 << 20)
    with stand() as one:
        cold = one.load()
        assert len(cold.layout.groups) == 1 and cold.layout.layers[LAST].nbytes % 512 == 0
        copies = one.driver.calls["copy"]
        cold.fetch(set(ALL) - {TABLE})
        assert one.driver.calls["copy"] == copies + 1
        assert one.runs() and one.driver.calls["copy"] == copies + 2


def test_a_warm_run_copies_nothing() -> None:
    with stand() as one:
        one.load().fetch(tuple(ALL))
        assert one.runs()
        calls = one.driver.calls["copy_groups"]
        assert one.runs() and one.driver.calls["copy_groups"] == calls


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["fetch", "evict", "run", "run"]),
        st.sampled_from([1, 2]),
        st.sampled_from(["p", "q"]),
        st.dictionaries(st.sampled_from(list(ALL)), st.integers(0, 3)),
    ),
    min_size=12,
    max_size=30,
)


@given(MOVES, st.sampled_from([1024, 4096, 1 << 16]), st.integers(0, 2))
@settings(max_examples=8, deadline=None)
def test_whatever_comes_and_goes_answers_are_right(
    moves: Any, budget_bytes: int, peers: int
) -> None:
    """Layers come by links of whatever number, also by those of peers that are not there."""
    with stand(budget_bytes=budget_bytes, peers=peers) as one:
        for seed in (1, 2):
            one.load(seed, "p", "q", batches=(4,))
        running: dict[tuple[int, str], list[Callable[[], bool]]] = {}

        def end(seed: int, name: str = "") -> None:
            for key in [key for key in running if key[0] == seed and name in ("", key[1])]:
                assert all(right() for right in running.pop(key))

        for what, seed, name, layers in moves:
            cold = one.models[seed].cold
            assert cold is not None
            if what == "fetch":
                cold.fetch(layers, layers)
            elif what == "evict":
                end(seed)  # the engine's law: nothing of it runs
                gone = [(to, at) for at, to in cold.held.items() if at in layers]
                one.settle()
                cold.evict(layers)
                one.settle()
                for address, at in gone:
                    one.poison(address, cold.layout.layers[at].nbytes)
            else:
                if sum(len(there) for (_, at), there in running.items() if at == name) > 1:
                    for other in (1, 2):
                        end(other, name)
                running.setdefault((seed, name), []).append(one.start(seed, name))
        for seed in (1, 2):
            end(seed)
