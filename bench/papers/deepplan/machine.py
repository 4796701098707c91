"""The paper's four V100 served by our engine, with any answer to cold starts.

A published answer's row is the released server: an instance belongs to the GPU of its number modulo
four, requests are served one at a time as they come, the longest idle instance leaves until less
than the card's memory less 5.5 GiB is in use, and a second partition comes over the GPU two further
on, which hangs on the other switch. Ours refuses what cannot be in
time, and gathers batches.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from bench.cold.machines import on_v100, p3_8xlarge
from bench.cold.playing import ColdFigures, cold_run, with_cold
from interlace.policy.cold_starts.catalog import COLD_POLICIES
from interlace.policy.cold_starts.frontier import moved_bytes
from interlace.sim.arrivals import Arrivals

#: By figure: the answers, their names in the paper, whether they take two links.
WAYS: Final = ("pipeswitch", "deepplan-dha", "deepplan", "interlace")
SLO_MS: Final = 100.0
#: 384 of the 1,024 tokens that GPT-2 has elsewhere.
PART_OF_GPT2: Final = 384 / 1024
#: What the driver tells of a card of 16 GB, less what the server leaves free.
CAPACITY_BYTES: Final = int((15.78 - 5.5) * (1 << 30))
#: Nobody is refused by the paper's server.
_ENDLESS_MS: Final = 600_000.0


def served(
    way: str,
    models: Sequence[str],
    arrivals: Arrivals,
    warm_part: float,
    rows: Sequence[float] = (),
) -> ColdFigures:
    """Instances of these models, named by ``arrivals`` in order; ``rows`` scale what one asks."""
    peers = 1 if way in ("deepplan-pt", "deepplan", "interlace") else 0
    profiles = {
        name: replace(on_v100(model, way, peers, part), model=name)
        for name, model, part in zip(
            arrivals.models, models, rows or [1.0] * len(models), strict=True
        )
    }
    fleet = p3_8xlarge(1, peers)
    plan, links = COLD_POLICIES[way].cold_start, fleet.gpus[0].links
    distinct = {one.layers for one in profiles.values()}
    copied = {one: moved_bytes(one, plan(one, links)) for one in distinct}
    # One more is loaded while less than the capacity is in use: the last one may exceed it.
    exceeds_bytes = sum(copied[one.layers] for one in profiles.values()) // len(profiles)
    fleet = p3_8xlarge(CAPACITY_BYTES + exceeds_bytes - 1, peers)
    if way == "interlace":
        rates = {name: float((arrivals.which == n).sum()) for n, name in enumerate(profiles)}
        rates = {name: count / arrivals.seconds for name, count in rates.items()}
        return cold_run(
            with_cold(way), fleet, profiles, arrivals, SLO_MS, rates, warm_part=warm_part
        )
    system = with_cold(way, "tfserving-nowait")
    return cold_run(system, fleet, profiles, arrivals, _ENDLESS_MS, warm_part=warm_part, batch=1)
