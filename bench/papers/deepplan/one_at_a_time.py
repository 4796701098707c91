"""Figure 13's server with one request a GPU at a time: what our engine does otherwise, by step.

The released server takes a GPU's requests in the order in which they come, and one that is cold
holds its GPU until it is answered. The engine lets requests of warm models pass those that wait for
weights, and executes while it loads. ``passing`` is the first of these by itself.
"""

from collections import OrderedDict, deque

from bench.cold.machines import on_v100, p3_8xlarge
from bench.cold.playing import poisson
from bench.papers.deepplan.links import SWITCH_OF
from bench.papers.deepplan.machine import CAPACITY_BYTES, SLO_MS
from interlace.policy.cold_starts.catalog import COLD_POLICIES
from interlace.policy.cold_starts.frontier import moved_bytes

_GPUS = len(SWITCH_OF)
_LINKS = (0, 1)


def good_part(
    model: str, way: str, instances: int, rate_rps: float, passing: bool, seed: int = 0
) -> float:
    """The part within the SLO of 1,000 requests after 2,000; switches carry a load at a time."""
    names = [f"{model}-{number:03}" for number in range(instances)]
    rates = dict.fromkeys(names, rate_rps / instances)
    arrivals = poisson(rates, 3000 / rate_rps, seed)
    waiting: list[deque[tuple[float, int]]] = [deque() for _ in range(_GPUS)]
    for at_ms, which in zip(arrivals.times_ms.tolist(), arrivals.which.tolist(), strict=True):
        waiting[which % _GPUS].append((at_ms, which))
    peers = int(way == "deepplan")
    profile = on_v100(model, way, peers)
    plan = COLD_POLICIES[way].cold_start(profile.layers, p3_8xlarge(1, peers).gpus[0].links)
    room = -(-CAPACITY_BYTES // moved_bytes(profile.layers, plan))  # the last one may exceed it
    warm_ms = profile.points[1, 100].median_ms
    copies_ms = [
        sum(profile.layers[at].copy_ms for at in plan.brought if plan.steps[at].link == link)
        for link in _LINKS
    ]
    rest_ms = plan.end_ms - max(copies_ms)
    free_ms, links_ms = [0.0] * _GPUS, [0.0] * _GPUS
    resident: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(_GPUS)]
    times_ms: list[float] = []
    while any(waiting):
        gpu = min(
            (one for one in range(_GPUS) if waiting[one]),
            key=lambda one: max(free_ms[one], waiting[one][0][0]),
        )
        queue, there = waiting[gpu], resident[gpu]
        now_ms = max(free_ms[gpu], queue[0][0])
        warm = (one for one in queue if one[0] <= now_ms and one[1] in there)
        request = next(warm, queue[0]) if passing else queue[0]
        queue.remove(request)
        at_ms, which = request
        if which in there:
            there.move_to_end(which)
            free_ms[gpu] = now_ms + warm_ms
        else:
            while len(there) >= room:
                there.popitem(last=False)
            there[which] = None
            come_ms = now_ms
            for link in range(peers + 1):
                switch = SWITCH_OF[(gpu + 2 * link) % _GPUS]
                links_ms[switch] = max(links_ms[switch], now_ms) + copies_ms[link]
                come_ms = max(come_ms, links_ms[switch])
            free_ms[gpu] = come_ms + rest_ms
        if at_ms >= 2_000_000 / rate_rps:
            times_ms.append(free_ms[gpu] - at_ms)
    return sum(one <= SLO_MS for one in times_ms) / len(times_ms)
