"""The configuration bound: time fractions of partitions that legal layouts can offer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from interlace.core.hardware import Gpu
from interlace.core.plan import Demand
from interlace.core.profile import Profiles
from interlace.perf.bounds.bound import Bound
from interlace.perf.bounds.rates import servable
from interlace.perf.latency import surface
from interlace.perf.layouts import Layout, layouts, shares
from interlace.perf.solver import Program, Row, solve


def configuration(demand: Sequence[Demand], gpu: Gpu, profiles: Profiles) -> Bound:
    """min sum_l y_l over layouts l and time fractions x_ip of model i in partitions of share p.

    Subject to sum_i x_ip <= sum_l count_lp y_l for each share and sum_p rate_ip x_ip >=
    attainment_i rate_i for each model. The duals of the latter are the prices. Where the
    accelerator may be cut freely, layouts are those of the shares that were measured.
    """
    known = servable(demand, gpu, profiles)
    if not known:
        return Bound(0.0, {})
    offered = shares(gpu, [surface(profiles[one.model]) for one, _ in known])
    cuts = layouts(gpu, offered)
    columns = [
        (index, share, rate)
        for index, (_, rates) in enumerate(known)
        for share, rate in rates.items()
        if share in offered
    ]
    solution = solve(_program(known, columns, offered, cuts), time_limit_s=60.0)
    wanted = [one.attainment for one, _ in known]
    price = {
        one.model: max(0.0, dual) * part
        for (one, _), dual, part in zip(known, solution.duals, wanted, strict=False)
    }
    return Bound(solution.objective if solution.optimal else 0.0, price)


def _program(
    known: Sequence[tuple[Demand, Mapping[int, float]]],
    columns: Sequence[tuple[int, int, float]],
    offered: Sequence[int],
    cuts: Sequence[Layout],
) -> Program:
    served: list[dict[int, float]] = [{} for _ in known]
    used: dict[int, dict[int, float]] = {share: {} for share in offered}
    for column, (model, share, rate) in enumerate(columns):
        served[model][column] = rate
        used[share][column] = 1.0
    for index, cut in enumerate(cuts):
        for share in set(cut):
            used[share][len(columns) + index] = -float(cut.count(share))
    rows = [
        Row(tuple(entry), tuple(entry.values()), one.attainment * one.rate_rps, float("inf"))
        for entry, (one, _) in zip(served, known, strict=True)
    ]
    rows += [Row(tuple(u), tuple(u.values()), -float("inf"), 0.0) for u in used.values()]
    count = len(columns) + len(cuts)
    cost = [0.0] * len(columns) + [1.0] * len(cuts)
    return Program(cost, [0.0] * count, [float("inf")] * count, [False] * count, rows)
