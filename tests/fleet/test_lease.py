"""One controller at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interlace.fleet.lease import FileLease, LatestLease, next_term


class Hands:
    """Several controllers with clocks of their own, which do not agree."""

    def __init__(self, folder: Path, count: int) -> None:
        self.now_ms = [1000.0 * i for i in range(count)]
        self.leases = [
            FileLease(folder, f"controller {i}", lambda i=i: self.now_ms[i], 300.0)  # type: ignore[misc]
            for i in range(count)
        ]

    def pass_ms(self, ms: float) -> None:
        self.now_ms = [now + ms for now in self.now_ms]

    def renew(self, who: Sequence[int], for_ms: float = 100.0) -> list[int | None]:
        terms = [self.leases[i].renew() for i in who]
        self.pass_ms(for_ms)
        return terms


def test_the_first_one_holds_it_as_long_as_it_renews(tmp_path: Path) -> None:
    hands = Hands(tmp_path, 2)
    for _ in range(20):
        assert hands.renew([0, 1]) == [1, None]
    assert hands.leases[1].holder == "controller 0"


def test_another_takes_it_when_it_is_not_renewed(tmp_path: Path) -> None:
    hands = Hands(tmp_path, 3)
    hands.renew([0, 1, 2])
    terms = [hands.renew([1, 2]) for _ in range(5)]
    assert terms[0] == [None, None] and terms[-1] == [2, None]
    assert hands.leases[0].renew() is None  # it was stopped, and learns that it lost the lease
    assert [hands.renew([0, 1]) for _ in range(10)][-1] == [None, 2]


def test_a_released_lease_is_taken_at_once(tmp_path: Path) -> None:
    hands = Hands(tmp_path, 2)
    hands.renew([0, 1])
    hands.leases[0].release()
    assert hands.renew([1]) == [2]
    hands.leases[0].release()  # it has none: nothing happens
    assert hands.renew([1, 0]) == [2, None]


def test_a_term_is_later_than_what_nodes_have_seen(tmp_path: Path) -> None:
    hands = Hands(tmp_path, 1)
    assert hands.leases[0].renew(at_least=8) == 8


def test_without_a_folder_who_began_last_commands() -> None:
    first = LatestLease()
    assert [first.renew(1), first.renew(2)] == [1, 1]  # nodes have seen its own term by now
    second = LatestLease()
    assert second.renew(2) == 2
    assert [second.renew(3), first.renew(3)] == [2, None]


def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        FileLease(tmp_path / "file", "c", lambda: 0.0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(awake=st.lists(st.sets(st.integers(0, 2)), max_size=40))
def test_no_term_has_two_holders(
    tmp_path_factory: pytest.TempPathFactory, awake: list[set[int]]
) -> None:
    """Law: whoever sleeps and wakes when, each term is one controller's, and terms rise."""
    hands = Hands(tmp_path_factory.mktemp("lease"), 3)
    owner: dict[int, int] = {}
    newest = 0
    for step in awake:
        for who in sorted(step):
            term = hands.leases[who].renew()
            if term is not None:
                assert owner.setdefault(term, who) == who
                assert term >= newest
                newest = term
        hands.pass_ms(120.0)


@pytest.mark.parametrize(
    ("terms", "begins", "wanted"),
    [
        ([], True, 1),
        ([3, 3, 4], True, 5),  # of an honest node that alone heard of a later one
        ([3, 3, 2**62], True, 4),
        ([0, 2**63 - 1], True, 1),
        ([3, 3, 9], False, 4),  # one node alone ends no command
        ([3, 9], False, 4),
        ([9, 9, 3], False, 10),  # most have another controller
        ([9], False, 10),
    ],
)
def test_no_node_alone_moves_the_term(terms: list[int], begins: bool, wanted: int) -> None:
    assert next_term(terms, begins) == wanted
