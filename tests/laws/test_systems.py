"""Every law of ``interlace.testing``, of every system of the catalog."""

import pytest

from interlace.policy.catalog import CATALOG
from interlace.testing import Law, laws_of

LAWS = [(name, law) for name, system in sorted(CATALOG.items()) for law in laws_of(system)]


@pytest.mark.parametrize(("name", "law"), LAWS, ids=str)
def test_law(name: str, law: Law) -> None:
    law(CATALOG[name])
