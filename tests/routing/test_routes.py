"""Whom a router asks."""

from collections.abc import Collection
from dataclasses import replace
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.errors import Reason, ServeError
from interlace.core.node import ModelOutlook, Node, NodeState
from interlace.routing.routes import Routes, RoutingLimits, by_pace

NONE: frozenset[str] = frozenset()


def outlook(wait_ms: float = 5.0, cold_ms: float = 0.0, arrived: int = 0) -> ModelOutlook:
    return ModelOutlook(wait_ms + cold_ms, 5.0, 1.0, 50.0, cold_ms, arrived=arrived)


def state(number: int = 0, **models: ModelOutlook) -> NodeState:
    return NodeState(1, number, models)


def routes(*names: str, seed: int = 0) -> Routes:
    made = Routes(RoutingLimits(), by_pace(Random(seed).choices))
    made.follow([Node(name, "127.0.0.1", 8000) for name in names])
    return made


def test_the_node_that_answers_first_is_asked() -> None:
    here = routes("a", "b")
    here.heard("a", state(m=outlook(9.0)), 0.0)
    here.heard("b", state(m=outlook(6.0)), 0.0)
    assert here.choose("m", NONE, 0.0, 0.0).name == "b"


def test_lent_time_is_used_where_no_other_is_in_time() -> None:
    here = routes("a", "b")
    here.heard("a", state(m=outlook(30.0)), 0.0)
    here.heard("b", state(m=replace(outlook(6.0), lent=True)), 0.0)
    assert here.choose("m", NONE, 0.0, 0.0).name == "a"
    assert here.choose("m", NONE, 30.0, 0.0).name == "b"  # 20 ms are left
    assert here.choose("m", frozenset("a"), 0.0, 0.0).name == "b"
    here.heard("b", state(1, m=replace(outlook(6.0), lent=True)), 900.0)
    assert here.choose("m", NONE, 0.0, 900.0).name == "b"  # the other is lost


def test_of_equal_nodes_each_is_drawn_as_often_as_it_has_hosts_for() -> None:
    here = routes("a", "b")
    here.heard("a", state(m=replace(outlook(5.0), row_ms=0.1)), 0.0)
    here.heard("b", state(m=replace(outlook(5.0), row_ms=0.4)), 0.0)
    asked = [here.choose("m", NONE, 0.0, 0.0).name for _ in range(2_000)]
    assert asked.count("a") == pytest.approx(1_600, abs=100)  # 5 deviations


def test_what_was_sent_since_counts() -> None:
    here = routes("a", "b")
    here.heard("a", state(m=outlook(9.0)), 0.0)
    here.heard("b", state(m=outlook(6.0)), 0.0)
    asked = []
    for _ in range(8):
        node = here.choose("m", NONE, 0.0, 0.0).name
        here.sent(node, "m")
        asked.append(node)
    assert asked[:3] == ["b", "b", "b"]
    assert 2 <= asked.count("a") <= 3  # level from there on


def test_what_others_sent_is_guessed_from_what_came() -> None:
    here = routes("a", "b")
    for number in range(20):
        now_ms = 25.0 * number
        here.heard("a", state(number, m=outlook(5.0, arrived=100 * number)), now_ms)
        here.heard("b", state(number, m=outlook(5.0)), now_ms)
    # 20 ms later: 80 requests of others wait at a.
    assert {here.choose("m", NONE, 0.0, 495.0).name for _ in range(20)} == {"b"}


def test_a_node_that_has_no_requests_is_asked_more_rarely() -> None:
    here = routes("a")
    pauses = []
    for number, arrived in enumerate((7, 7, 7, 8, 8)):
        here.heard("a", state(number, m=outlook(arrived=arrived)), 25.0 * number)
        pauses.append(here.pause_ms("a"))
    assert pauses == [20.0, 50.0, 50.0, 20.0, 50.0]
    here.sent("a", "m")
    here.heard("a", state(5, m=outlook(arrived=8)), 200.0)
    assert here.pause_ms("a") == 20.0, "what was sent is on its way"
    here.heard("a", NodeState(1, 6, {"m": outlook(arrived=8)}, settled=False), 225.0)
    assert here.pause_ms("a") == 20.0, "it is changing"
    assert here.pause_ms("stranger") == 20.0


def test_lost_nodes_are_looked_for_when_one_may_be_lost() -> None:
    here = routes("a", "b")
    assert here.look_after_ms(0.0) == 100.0, "none was ever heard"
    here.heard("a", state(m=outlook()), 0.0)
    here.heard("b", state(m=outlook()), 370.0)
    assert here.look_after_ms(200.0) == 100.0
    assert here.look_after_ms(360.0) == pytest.approx(40.0)
    assert here.look_after_ms(399.999) == 1.0
    assert here.look_after_ms(400.0) == 100.0, "a is lost, b has spoken lately"
    assert [node.node.name for node in here.silent(400.0)] == ["a"]


def test_an_older_state_is_passed_over_and_a_new_start_is_not() -> None:
    here = routes("a")
    here.heard("a", state(5, m=outlook()), 0.0)
    here.heard("a", state(4), 1.0)
    assert here.serves("m", 1.0)
    here.heard("a", NodeState(2, 0, {}), 2.0)
    assert not here.serves("m", 2.0)


def test_a_node_that_serves_a_model_no_more_is_not_asked_for_it() -> None:
    here = routes("a", "b")
    here.heard("a", state(1, m=outlook(1.0), k=outlook()), 0.0)
    here.heard("b", state(1, m=outlook(9.0)), 0.0)
    here.heard("a", state(2, k=outlook()), 1.0)
    assert here.choose("m", NONE, 0.0, 1.0).name == "b"
    here.follow([Node("a", "127.0.0.1", 8000)])
    assert not here.serves("m", 1.0) and here.serves("k", 1.0)


def test_silent_nodes_are_asked_after_all_others_and_lost_ones_not_at_all() -> None:
    here = routes("a", "b")
    here.heard("a", state(m=outlook(1.0)), 0.0)
    here.heard("b", state(m=outlook(40.0)), 150.0)
    assert here.choose("m", NONE, 0.0, 160.0).name == "b"
    assert here.choose("m", {"b"}, 0.0, 160.0).name == "a"
    assert [n.node.name for n in here.silent(500.0)] == ["a"]
    assert not here.waits("a", "m", 0.0, 500.0)
    with pytest.raises(ServeError) as found:
        here.choose("m", {"b"}, 0.0, 501.0)
    assert found.value.reason is Reason.NOT_READY


def test_the_last_that_could_be_asked_is_given_more_time() -> None:
    here = routes("a", "b", "c")
    here.heard("a", state(m=outlook()), 0.0)
    here.heard("b", state(m=outlook()), 350.0)
    here.heard("c", NodeState(1, 0, {"m": outlook()}, accepting=False), 900.0)  # it takes nothing
    assert here.choose("m", NONE, 0.0, 2_349.0).name == "b"
    assert not here.serves("m", 2_350.0)
    here.stalled(1_000.0)
    assert here.choose("m", NONE, 0.0, 3_349.0).name == "b"
    here.follow([Node("a", "127.0.0.1", 8000)])
    assert here.choose("m", NONE, 0.0, 2_999.0).name == "a"  # nobody else is left


def test_a_models_only_node_is_asked_while_others_are_heard_and_its_requests_stay_in_time() -> None:
    here = routes("a", "b")
    here.heard("a", state(m=outlook(), k=outlook()), 0.0)
    for number in range(21):
        here.heard("b", state(number, k=outlook()), 100.0 * number)
    assert [n.node.name for n in here.silent(1_999.0)] == ["a"]
    assert here.choose("m", NONE, 0.0, 1_999.0).name == "a"
    assert here.choose("k", NONE, 0.0, 1_999.0).name == "b"
    assert here.waits("a", "m", 50.0, 1_999.0) and not here.waits("a", "m", 51.0, 1_999.0)
    assert not here.waits("a", "k", 0.0, 1_999.0) and not here.waits("a", "", 0.0, 1_999.0)
    assert refusal(here, "m", 2_000.0) is Reason.NOT_READY
    assert not here.waits("a", "m", 0.0, 2_000.0)


@given(
    heard_ms=st.lists(st.floats(0.0, 3_000.0), min_size=1, max_size=5),
    later_ms=st.lists(st.floats(0.0, 3_000.0), min_size=1, max_size=5),
)
def test_while_nobody_is_heard_the_last_one_counts_and_none_comes_back(
    heard_ms: list[float], later_ms: list[float]
) -> None:
    """Law: who was heard last is lost last, within bounds, and silence alone brings none back."""
    here = routes(*(f"n{i}" for i in range(len(heard_ms))))
    for at_ms, index in sorted((ms, i) for i, ms in enumerate(heard_ms)):
        here.heard(f"n{index}", state(m=outlook()), at_ms)
    last_ms = max(heard_ms)
    limits, there = here.limits, set(here.nodes)
    for now_ms in sorted(last_ms + ms for ms in later_ms):
        able = {n for n in there if here.waits(n.node.name, "m", 0.0, now_ms)}
        assert able == {n for n in here.nodes if here.waits(n.node.name, "m", 0.0, now_ms)}
        assert bool(able) == (now_ms - last_ms < limits.unheard_times * limits.lost_ms)
        long_ms = limits.lost_ms if last_ms > now_ms - limits.lost_ms else 0.0
        assert all(n.heard_ms > last_ms - limits.silent_ms - long_ms for n in able)
        assert set(here.present(now_ms)) == set(here.nodes) - set(here.silent(now_ms))
        there = able


def test_of_a_model_that_no_node_holds_all_routers_load_the_same_one() -> None:
    picked = set()
    for seed in range(8):
        here = routes("a", "b", "c", seed=seed)
        for name in "abc":
            here.heard(name, state(m=outlook(5.0, cold_ms=20.0)), 0.0)
        for _ in range(4):
            node = here.choose("m", NONE, 0.0, 0.0).name
            here.sent(node, "m")
            picked.add(node)
    assert len(picked) == 1


def test_a_node_that_holds_the_model_is_asked_before_one_that_must_load_it() -> None:
    here = routes("a", "b")
    here.heard("a", state(m=outlook(5.0, cold_ms=20.0)), 0.0)
    here.heard("b", state(m=outlook(9.0)), 0.0)
    assert here.choose("m", NONE, 0.0, 0.0).name == "b"


def test_another_node_is_tried_only_while_time_is_left() -> None:
    here = routes("a", "b")
    for name in "ab":
        here.heard(name, state(m=outlook(5.0)), 0.0)
    assert here.choose("m", {"a"}, 44.0, 0.0).name == "b"
    with pytest.raises(ServeError) as found:
        here.choose("m", {"a"}, 46.0, 0.0)
    assert found.value.reason is Reason.OVERLOADED and "node a" in found.value.detail


def test_a_first_try_is_made_even_where_it_looks_late() -> None:
    here = routes("a")
    here.heard("a", state(m=outlook(500.0)), 0.0)
    assert here.choose("m", NONE, 0.0, 0.0).name == "a"


@pytest.mark.parametrize(
    ("heard", "reason", "says"),
    [
        ((), Reason.NOT_READY, "node a, b has said nothing yet"),
        (("a", "b"), Reason.UNKNOWN_MODEL, "served by no node"),
    ],
)
def test_it_says_why_there_is_nobody(heard: tuple[str, ...], reason: Reason, says: str) -> None:
    here = routes("a", "b")
    for name in heard:
        here.heard(name, state(other=outlook()), 0.0)
    with pytest.raises(ServeError) as found:
        here.choose("m", NONE, 0.0, 0.0)
    assert found.value.reason is reason and says in found.value.detail


def test_nodes_that_serve_nothing_yet_do_not_say_which_models_there_are() -> None:
    here = routes("a", "b")
    for name in "ab":
        here.heard(name, state(), 0.0)
    assert refusal(here, "m", 0.0) is Reason.NOT_READY
    here.heard("b", state(1, k=outlook()), 1.0)
    assert refusal(here, "m", 1.0) is Reason.UNKNOWN_MODEL


def test_who_knows_that_nothing_is_wanted_says_so_of_any_model() -> None:
    here = routes("a")
    here.heard("a", state(), 0.0)
    here.wanted = ()
    assert refusal(here, "m", 0.0) is Reason.UNKNOWN_MODEL


def refusal(here: Routes, model: str, now_ms: float, tried: Collection[str] = "") -> Reason:
    with pytest.raises(ServeError) as found:
        here.choose(model, tried, 0.0, now_ms)
    return found.value.reason


def test_a_model_whose_only_node_began_anew_or_left_is_not_unknown() -> None:
    here = routes("a", "b")
    here.heard("a", state(m=outlook(), k=outlook()), 0.0)
    here.heard("b", state(), 0.0)
    here.heard("a", NodeState(2, 0, {"k": outlook()}), 1.0)  # empty, before it stands elsewhere
    here.follow([Node("b", "127.0.0.1", 8000)])
    now_ms = RoutingLimits().known_ms
    here.heard("b", state(1, x=outlook()), now_ms)
    assert {refusal(here, model, now_ms) for model in "mk"} == {Reason.NOT_READY}
    assert refusal(here, "other", now_ms) is Reason.UNKNOWN_MODEL
    here.heard("b", state(2, x=outlook()), now_ms + 2.0)
    assert refusal(here, "k", now_ms + 2.0) is Reason.UNKNOWN_MODEL  # nobody misses it


def test_who_knows_what_is_wanted_is_asked_which_models_there_are() -> None:
    here = routes("a")
    here.heard("a", state(m=outlook()), 0.0)
    here.heard("a", state(1), 1.0)
    here.wanted = {"k"}
    assert refusal(here, "k", 1.0) is Reason.NOT_READY  # not served yet
    with pytest.raises(ServeError, match="no node has it ready yet"):
        here.choose("k", "", 0.0, 1.0)
    assert refusal(here, "m", 1.0) is Reason.UNKNOWN_MODEL  # withdrawn


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans(), st.floats(0.0, 40_000.0))))
def test_what_is_served_no_more_is_forgotten_in_the_end(
    steps: list[tuple[int, bool, float]],
) -> None:
    here, now_ms = routes("a"), 0.0
    last: dict[str, float] = {}
    for number, (model, served, later_ms) in enumerate(steps):
        now_ms += later_ms
        models = {"x": outlook()} | ({f"m{model}": outlook()} if served else {})
        last.update(dict.fromkeys(models, inf))
        last |= {m: now_ms for m in last.keys() - models if last[m] == inf}
        here.heard("a", state(number, **models), now_ms)
        for name, until_ms in last.items():
            if until_ms < inf:
                lately = now_ms - until_ms <= here.limits.known_ms
                assert (refusal(here, name, now_ms) is Reason.NOT_READY) == lately


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sets(st.sampled_from("mkx")))),
    st.none() | st.sets(st.sampled_from("mkx")),
)
def test_nodes_are_asked_for_what_they_said_last(
    steps: list[tuple[int, set[str]]], wanted: set[str] | None
) -> None:
    """Law: who is asked has the model by its own word; who was served lately is not unknown."""
    here = routes("0", "1", "2")
    here.wanted = wanted
    has: dict[str, set[str]] = {name: set() for name in "012"}
    for name in "012":
        here.heard(name, state(y=outlook()), 0.0)
    once: set[str] = set()
    for number, (node, models) in enumerate(steps):
        news = state(number + 1, y=outlook(), **dict.fromkeys(models, outlook()))
        here.heard(str(node), news, 1.0)
        has[str(node)] = models
        once |= models
        for model in "mkx":
            able = {name for name, models in has.items() if model in models}
            known = model in (once if wanted is None else wanted)
            unless = Reason.NOT_READY if known else Reason.UNKNOWN_MODEL
            assert here.serves(model, 1.0) == bool(able)
            if able:
                assert here.choose(model, NONE, 0.0, 1.0).name in able
                assert refusal(here, model, 1.0, able) is unless
            else:
                assert refusal(here, model, 1.0, "0") is unless


def test_a_moved_node_is_gone_and_new() -> None:
    here = routes("a", "b")
    moved = Node("a", "127.0.0.2", 8000)
    new, gone = here.follow([moved])
    assert new == [moved]
    assert sorted(node.name for node in gone) == ["a", "b"]


@given(
    waits=st.lists(st.floats(0.1, 100.0), min_size=1, max_size=6),
    steps=st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=60),
    seed=st.integers(0, 9),
)
def test_who_is_asked_serves_the_model_and_was_not_tried(
    waits: list[float], steps: list[tuple[int, bool]], seed: int
) -> None:
    """Law: whatever is heard and sent, a choice is able, untried, and the first by belief."""
    names = [f"n{i}" for i in range(len(waits))]
    here = routes(*names, seed=seed)
    now_ms = 0.0
    for name, wait_ms in zip(names, waits, strict=True):
        here.heard(name, state(m=outlook(wait_ms)), now_ms)
    for number, (index, speaks) in enumerate(steps):
        now_ms += 10.0
        name = names[index % len(names)]
        if speaks:
            here.heard(name, state(number + 1, m=outlook(waits[index % len(waits)])), now_ms)
            continue
        able = {
            n.node.name: n.answer_ms("m", now_ms)
            for n in here.nodes
            if n.heard_ms > now_ms - here.limits.lost_ms
        }
        untried = {key: ms for key, ms in able.items() if key != name}
        fresh = {
            n.node.name
            for n in here.nodes
            if n.heard_ms > now_ms - here.limits.silent_ms and n.node.name in untried
        }
        among = fresh or set(untried)
        try:
            chosen = here.choose("m", {name}, 0.0, now_ms).name
        except ServeError:
            assert all(untried[key] > 50.0 for key in among)
            continue
        assert chosen in among
        assert untried[chosen] <= min(untried[key] for key in among) + here.limits.equal_ms
        here.sent(chosen, "m")


def test_all_routers_ask_one_node_for_a_sequence_and_no_other() -> None:
    here, there = routes("a", "b", "c"), routes("c", "a", "b", seed=1)
    for router in (here, there):
        for name in "abc":
            outlooks = {"m": replace(outlook(float(ord(name))), stateful=True), "n": outlook()}
            router.heard(name, state(0, **outlooks), 0.0)
    assert here.stateful("m") and not here.stateful("n") and not here.stateful("o")
    asked = {str(id): here.choose_for(str(id), "m", NONE, 0.0).name for id in range(30)}
    assert set(asked.values()) == set("abc")
    assert asked == {id: there.choose_for(id, "m", NONE, 0.0).name for id in asked}
    with pytest.raises(ServeError, match="node a has the state of sequence 7 of model 'm'"):
        here.choose_for("7", "m", ["a"], 0.0)
    here.follow([Node(name, "127.0.0.1", 8000) for name in "ab"])  # others stay
    left = {id: here.choose_for(id, "m", NONE, 0.0).name for id in asked}
    assert all(left[id] == name for id, name in asked.items() if name != "c")
