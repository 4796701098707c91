"""Large fleets: the program apart for groups of models, joined by the layouts of the whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from interlace.perf.layouts import Layout
from interlace.perf.queueing import Floats
from interlace.perf.solver import Program, Row, solve
from interlace.policy.packing.options import Ints
from interlace.policy.packing.pattern import Discipline, Pattern, Shop
from interlace.policy.packing.search import Effort, Found, greedy, per_area, worths

#: Models in a group: enough of them to fill every partition, few enough to price at once.
_GROUP: Final = 40


def search_apart(
    shops: Mapping[int, Shop],
    rate_rps: Floats,
    layouts: Sequence[Layout],
    discipline: Discipline,
    effort: Effort,
) -> Found:
    """Patterns for each group of models in turn, then the fewest layouts that hold them all.

    Groups are dealt by size of the work, so that each has large and small models to combine. What
    the relaxation says of the whole is the work at its cheapest.
    """
    worth = worths(shops, len(rate_rps))
    work = worth * rate_rps
    patterns: Counter[Pattern] = Counter()
    for group in _groups(work):
        mine = {
            share: discipline(one.options.part(group), one.market.part(group))
            for share, one in shops.items()
        }
        taken = greedy(mine, rate_rps[group], worth[group], per_area(shops))
        for pattern, count in taken.items():
            turns = tuple((int(group[model]), batch) for model, batch in pattern.turns)
            patterns[replace(pattern, turns=turns)] += count
    return _joined(patterns, tuple(shops), layouts, float(work.sum()), effort)


def _groups(work: Floats) -> list[Ints]:
    order = np.argsort(-work, kind="stable")
    count = max(1, -(-len(order) // _GROUP))
    return [np.sort(order[start::count]) for start in range(count)]


def _joined(
    patterns: Counter[Pattern],
    shares_pct: Sequence[int],
    layouts: Sequence[Layout],
    relaxed: float,
    effort: Effort,
) -> Found:
    """The fewest layouts with a partition for every pattern; without a limit, they always exist."""
    needed = Counter({s: 0 for s in shares_pct})
    for pattern, count in patterns.items():
        needed[pattern.share_pct] += count
    total = float(sum(needed.values()))
    rows = []
    for share in shares_pct:
        entry = {i: float(one.count(share)) for i, one in enumerate(layouts) if share in one}
        rows.append(Row(tuple(entry), tuple(entry.values()), float(needed[share]), float("inf")))
    count = len(layouts)
    program = Program([1.0] * count, [0.0] * count, [total] * count, [True] * count, rows)
    solution = solve(program, time_limit_s=effort.time_limit_s, nodes=effort.nodes)
    counts = np.rint(np.array(solution.values)).astype(int)
    cuts = tuple(one for one, times in zip(layouts, counts, strict=True) for _ in range(times))
    return Found(patterns, cuts, np.zeros(0), relaxed, solution.optimal)
