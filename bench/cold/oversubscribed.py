"""Three times as many models as memory holds: bytes moved, against first come and LRU.

BERT-Base on an H100, all asked alike, an SLO of two seconds. Both rows bring models by the same
plan; one as requests come, the longest idle leaving, the other by deadline and by worth, where a
load waits for company as long as its requests have time. Requests that are late with ours though
they were in time without it are counted by name.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Final

from bench.cold.machines import bert_on_h100, h100
from bench.cold.playing import Seeds, cold_run, poisson, told, with_cold
from bench.harness import Report, Row, main
from interlace.policy.base import System
from interlace.policy.eviction import least_recently_used
from interlace.policy.load_order import first_come
from interlace.policy.prefetch import on_demand

_TIMES: Final = 3
_COPIED_BYTES: Final = 171_000_000


def oversubscribed(
    *,
    models: Annotated[int, "of which a third fit"] = 45,
    rate_rps: Annotated[float, "of all together"] = 150.0,
    slo_ms: Annotated[float, "of every request"] = 2000.0,
    seconds: Annotated[float, "of arrivals"] = 12.0,
    seeds: Seeds = 3,
) -> Report:
    """Bytes moved and requests late, both ways."""
    rates = {f"bert-{place}": rate_rps / models for place in range(models)}
    profiles = dict.fromkeys(rates, bert_on_h100())
    fleet = h100(models * _COPIED_BYTES // _TIMES)
    ratios, fewer, lost, ends = [], [], [], []
    for seed in range(seeds):
        arrivals = poisson(rates, seconds, seed)
        plain, ours = (
            cold_run(system, fleet, profiles, arrivals, slo_ms)
            for system in (as_they_come(), with_cold("interlace"))
        )
        ratios.append(ours.moved_bytes / plain.moved_bytes)
        fewer.append(plain.fetches / max(1, ours.fetches))
        lost.append(len(ours.late - plain.late))
        ends.append((plain, ours))
    rows = [
        Row(*_swap(told(ratios, "bytes moved, over first come and LRU"), 0.5)),
        Row(*_swap(told(fewer, "loads, first come over ours"), None)),
        Row(*_swap(told(lost, "requests late only with ours"), 0.0)),
    ]
    for place, name in enumerate(("first come and LRU", "ours")):
        p99 = told([pair[place].p99_ms for pair in ends], f"{name}: p99")
        late = told([100 * (1 - pair[place].in_slo) for pair in ends], f"{name}: late")
        rows += [Row(p99[0], None, p99[1], " ms"), Row(late[0], None, late[1], " %")]
    return Report(rows)


def _swap(words_and_value: tuple[str, float], aim: float | None) -> tuple[str, float | None, float]:
    return words_and_value[0], aim, words_and_value[1]


def as_they_come() -> System:
    """Our plan of a load, whole models by age, first come first served."""
    ours = with_cold("interlace")
    plain = replace(
        ours.cold,
        name="first-come",
        eviction=least_recently_used,
        prefetch=on_demand,
        order=first_come,
    )
    return replace(ours, cold=plain)


if __name__ == "__main__":
    main(oversubscribed)
