"""The device of docs/devices.md passes the part of the contract that the page names."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contracts import test_device as contract
from tests.contracts.stands import QUICK, SLOW, RigStand
from tests.device.cpu.rig import Rig

PAGE = (Path(__file__).parents[2] / "docs" / "devices.md").read_text()
(CODE,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
#: What takes a process, a second partition at the same time, or work that lasts.
_LATER = (
    "a_slow_partition_does_not_hold_up_another",
    "carving_and_loading_overlap_with_serving",
    "a_death_ends_all_work_and_is_told_once",
    "a_dead_partition_is_replaced",
    "a_replacement_can_be_asked_for_where_the_loss_is_told",
    "closing_ends_what_is_unfinished",
)
TESTS = [
    test
    for name, test in vars(contract).items()
    if name.startswith("test_") and name.removeprefix("test_") not in _LATER
]


class EchoStand(RigStand):
    """The page's device, on a loop in real time."""

    def __init__(self) -> None:
        names: dict[str, Any] = {}
        exec(compile(CODE, "devices.md", "exec"), names)
        super().__init__(Rig(lambda rig: names["EchoDevice"](rig.loop)))

    def kill(self, partition: str) -> None:
        raise NotImplementedError

    def units(self, share_pct: int) -> int:
        return 1

    def die_together(self) -> bool:
        return True


@pytest.fixture
def stand() -> Iterator[EchoStand]:
    made = EchoStand()
    for known in (QUICK, SLOW):
        made.device.register(known)
    yield made
    made.close()


@pytest.mark.parametrize("test", TESTS, ids=lambda test: test.__name__)
def test_it_passes(test: Callable[[EchoStand], None], stand: EchoStand) -> None:
    test(stand)


def test_the_page_says_how_many() -> None:
    assert f"against {len(TESTS)} contract tests" in PAGE
    assert len(TESTS) + len(_LATER) == sum(name.startswith("test_") for name in vars(contract))
