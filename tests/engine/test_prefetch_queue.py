"""The heap of missing weights finds what a look at every model would."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from interlace.engine.residency import PrefetchQueue


@dataclass
class _Model:
    """Its worth falls from when it last changed, at a pace of its own."""

    model: str
    clock: list[float] = field(repr=False)
    worth: float = 0.0
    half_ms: float = 1.0
    since_ms: float = 0.0
    looks: int = 0

    @property
    def missing_worth(self) -> float:
        self.looks += 1
        return self.worth / (1.0 + (self.clock[0] - self.since_ms) / self.half_ms)


_STEPS = st.lists(
    st.tuples(
        st.integers(0, 7),  # which changes
        st.floats(0.0, 100.0),  # what it is worth then
        st.floats(0.1, 1000.0),
        st.floats(0.0, 50.0),  # how much later
        st.sampled_from(["changes", "changes", "is forgotten"]),
    ),
    max_size=60,
)


@given(_STEPS)
def test_the_hottest_is_that_of_a_look_at_all(steps: list[tuple[int, float, float, float, str]]):
    clock, found, there = [0.0], PrefetchQueue(), dict[str, _Model]()
    for number, worth, half_ms, passed_ms, what in steps:
        clock[0] += passed_ms
        name = f"m{number}"
        if what == "changes":
            one = there.setdefault(name, _Model(name, clock))
            one.worth, one.half_ms, one.since_ms = worth, half_ms, clock[0]
            found.changed(one)
        elif there.pop(name, None) is not None:
            found.forget(name)
        hottest = found.hottest()
        most = max((one.missing_worth for one in there.values()), default=0.0)
        assert (0.0 if hottest is None else there[hottest].missing_worth) == most


def test_a_look_costs_by_what_changed_and_not_by_how_many_there_are() -> None:
    clock, found = [0.0], PrefetchQueue()
    models = [_Model(f"m{n}", clock, 1.0 + n, 1e6) for n in range(1000)]
    for one in models:
        found.changed(one)
    found.hottest()
    before = sum(one.looks for one in models)
    for one in models[:50]:
        clock[0] += 1.0
        found.changed(one)
        assert found.hottest() == "m999"
    assert sum(one.looks for one in models) - before < 50 * 5
