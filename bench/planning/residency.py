"""What stays in memory, against LRU and the best there is: 400 BERT-Base on one V100.

Each request is of a model drawn by a Zipf law. LRU keeps whole models, as the papers do, the large
table of each on the host; ours keeps what the knapsack chooses by the rates, which it is told. The
bound on the link's time is the fractional knapsack: whole models by rate. Times are of an idle
link, weights as DeepPlan's V100 has them (`bench/papers/deepplan/v100.py`).
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated, NamedTuple

from bench.harness import Report, Row, bars, main
from bench.papers.deepplan.v100 import layers
from interlace.core.loading import HostLinks
from interlace.policy.cold_curve import ColdCurve, ColdPoint
from interlace.policy.cold_starts.frontier import frontier
from interlace.policy.residency import residency as kept_by_worth

_SKEWS = (0.0, 0.9, 1.1)


class Costs(NamedTuple):
    """Of a request, on average: the link's time, and the time to its end on an idle link."""

    link_ms: float
    end_ms: float


def residency(
    *,
    models: Annotated[int, "BERT-Base"] = 400,
    memory_gb: Annotated[float, "of the GPU, for weights"] = 16.0,
    requests: Annotated[int, "drawn for LRU"] = 200_000,
) -> Report:
    """Three popularities, three ways."""
    curve = ColdCurve(frontier, layers("bert_base"), HostLinks()).points
    memory_bytes = int(memory_gb * 1e9)
    rows: list[Row] = []
    drawn: dict[str, list[float]] = {"LRU": [], "ours": []}
    for skew in _SKEWS:
        weights = [(place + 1) ** -skew for place in range(models)]
        rates = [weight / sum(weights) for weight in weights]
        lru, ours = (
            by_lru(curve, rates, memory_bytes, requests),
            by_worth(curve, rates, memory_bytes),
        )
        least_ms = least_link_ms(curve, rates, memory_bytes)
        rows += [
            Row(f"Zipf {skew:g}: link, LRU over the bound", None, lru.link_ms / least_ms),
            Row(f"Zipf {skew:g}: link, ours over the bound", None, ours.link_ms / least_ms),
            Row(f"Zipf {skew:g}: mean time, LRU", None, lru.end_ms, " ms"),
            Row(f"Zipf {skew:g}: mean time, ours", None, ours.end_ms, " ms"),
        ]
        drawn["LRU"].append(lru.link_ms / least_ms)
        drawn["ours"].append(ours.link_ms / least_ms)
    names = [f"Zipf {skew:g}" for skew in _SKEWS]
    return Report(rows, bars(names, drawn, "time of the link / bound", level=1.0), (5.0, 3.0))


def by_lru(
    curve: Sequence[ColdPoint], rates: Sequence[float], memory_bytes: int, requests: int
) -> Costs:
    """Whole models; the first quarter of the requests fills the memory."""
    cold = curve[0]
    warm_ms = next(one.end_ms for one in curve if one.kept_bytes >= cold.copied_bytes)
    most = memory_bytes // cold.copied_bytes
    drawn = random.Random(0).choices(range(len(rates)), rates, k=requests)
    resident: OrderedDict[int, None] = OrderedDict()
    missed = 0
    for number, model in enumerate(drawn):
        missed += model not in resident and number >= requests // 4
        resident[model] = None
        resident.move_to_end(model)
        if len(resident) > most:
            resident.popitem(last=False)
    part = missed / (requests - requests // 4)
    return Costs(part * cold.copy_ms, part * cold.end_ms + (1 - part) * warm_ms)


def by_worth(curve: Sequence[ColdPoint], rates: Sequence[float], memory_bytes: int) -> Costs:
    """The product's knapsack, the rates known."""
    names = [str(place) for place in range(len(rates))]
    by_name = dict(zip(names, rates, strict=True))
    found = kept_by_worth(dict.fromkeys(names, curve), by_name, memory_bytes)
    points = [(by_name[name], point) for name, point in found.kept.items()]
    return Costs(
        sum(rate * point.copy_ms for rate, point in points),
        sum(rate * point.end_ms for rate, point in points),
    )


def least_link_ms(curve: Sequence[ColdPoint], rates: Sequence[float], memory_bytes: int) -> float:
    """The link's time if whole models are kept by rate, the last one in part."""
    cold = curve[0]
    left_bytes, total_ms = memory_bytes, 0.0
    for rate in sorted(rates, reverse=True):
        taken = min(cold.copied_bytes, left_bytes)
        left_bytes -= taken
        total_ms += rate * cold.copy_ms * (1 - taken / cold.copied_bytes)
    return total_ms


if __name__ == "__main__":
    main(residency)
