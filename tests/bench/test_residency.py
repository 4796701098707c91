"""What stays in memory, in reduced form: against LRU and the bound."""

from __future__ import annotations

from bench.planning.residency import residency
from tests.bench.conftest import Drawn


def test_worth_spares_the_link_what_lru_does_not(drawn: Drawn) -> None:
    ours = drawn(residency(models=60, memory_gb=4.0, requests=20_000)).ours
    for skew in ("0", "0.9", "1.1"):
        link = ours[f"Zipf {skew}: link, ours over the bound"]
        assert 1.0 - 1e-9 <= link <= 1.2
        assert link <= 1.02 * ours[f"Zipf {skew}: link, LRU over the bound"]
        assert ours[f"Zipf {skew}: mean time, ours"] <= ours[f"Zipf {skew}: mean time, LRU"]
