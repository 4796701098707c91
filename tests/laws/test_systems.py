"""Every law of ``interlace.testing``, of every system of the catalog."""

from itertools import chain

import pytest

from interlace.policy.catalog import CATALOG
from interlace.testing import (
    Law,
    cold_laws,
    dispatcher_laws,
    fairness_laws,
    planner_laws,
)
from tests.builders import distinct_rows

#: Parts of a system that the laws of a module check.
CHECKED = {
    planner_laws: ("planner", "packer"),
    dispatcher_laws: ("dispatcher",),
    fairness_laws: ("dispatcher",),
    cold_laws: ("cold",),
}


def cases(law: Law, parts: tuple[str, ...]) -> list[object]:
    systems = [system for system in CATALOG.values() if law.holds_for(system)]
    rows = distinct_rows(*parts, systems=systems)
    return [pytest.param(*row.values, law, marks=row.marks) for row in rows]


LAWS = [
    cases(law, parts)
    for module, parts in CHECKED.items()
    for law in vars(module).values()
    if isinstance(law, Law)
]


@pytest.mark.parametrize(("name", "law"), [*chain(*LAWS)], ids=str)
def test_law(name: str, law: Law) -> None:
    law(CATALOG[name])
