"""Four hundred BERT-Base in 16 GB of an H100: every answer to cold starts in the same engine.

FP16, 128 tokens, an SLO of 50 ms, Poisson arrivals; all models asked alike, or by a Zipf law. The
optimum of the link is the knapsack made divisible, over what our plans could keep of each model,
the rates known: no choice that stays leaves the link less to do. Ours is told the rates as a plan
tells them, and learns them as it serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from bench.cold.machines import bert_on_h100, h100
from bench.cold.playing import ColdFigures, Seeds, cold_run, poisson, told, with_cold, zipf_parts
from bench.harness import Report, Row, main
from interlace.core.loading import HostLinks
from interlace.policy.cold_curve import ColdCurve, ColdPoint, hull
from interlace.policy.cold_starts.catalog import COLD_POLICIES
from interlace.policy.cold_starts.frontier import lasting

_SLO_MS: Final = 50.0
#: Rate, exponent of Zipf's law, and the p99 that is aimed at.
_CASES: Final = ((100.0, 0.0, 12.0), (250.0, 0.0, 25.0), (250.0, 0.9, 10.0), (250.0, 1.1, None))


def many_models(
    *,
    models: Annotated[int, "BERT-Base"] = 400,
    memory_gb: Annotated[float, "of the GPU, for weights"] = 16.0,
    seconds: Annotated[float, "of arrivals"] = 60.0,
    seeds: Seeds = 3,
    rows: Annotated[str, "answers to cold starts, or all"] = "all",
    links: Annotated[int, "that weights come over: the GPU's own, and idle ones of others"] = 1,
) -> Report:
    """Times, cold requests and the link's time, by popularity and answer; medians and spreads."""
    names = list(COLD_POLICIES) if rows == "all" else rows.split(",")
    found: list[Row] = []
    for rate_rps, skew, goal_ms in _CASES:
        parts = zipf_parts(models, skew)
        least = least_link_part(parts, rate_rps, int(memory_gb * 1e9))
        runs_of = {
            name: [
                one_run(name, parts, rate_rps, int(memory_gb * 1e9), seconds, seed, links)
                for seed in range(seeds)
            ]
            for name in names
        }
        for name, runs in runs_of.items():
            where = f"{rate_rps:g}/s, Zipf {skew:g}, {name}"
            for words, aim, values, unit in (
                ("p50", None, [one.p50_ms for one in runs], " ms"),
                ("p99", goal_ms if name == "interlace" else None, [o.p99_ms for o in runs], " ms"),
                ("cold", None, [100 * one.cold_part for one in runs], " %"),
                ("in time", 99.9, [100 * one.in_slo for one in runs], " %"),
                ("link over optimum", 1.05, [one.link_part / least for one in runs], ""),
            ):
                text, value = told(values, f"{where}: {words}")
                found.append(Row(text, aim, value, unit))
            for words, ratios in _over_ours(runs, runs_of.get("interlace", ())):
                text, value = told(ratios, f"{where}: {words} over ours")
                found.append(Row(text, None, value))
    return Report(found)


def _over_ours(
    runs: Sequence[ColdFigures], ours: Sequence[ColdFigures]
) -> list[tuple[str, list[float]]]:
    """By what it loses in runs of the same arrivals."""
    if not ours or runs is ours:
        return []
    pairs = list(zip(runs, ours, strict=True))
    return [
        ("p99", [one.p99_ms / other.p99_ms for one, other in pairs]),
        ("link", [one.link_part / max(other.link_part, 1e-9) for one, other in pairs]),
    ]


def one_run(
    name: str,
    parts: list[float],
    rate_rps: float,
    memory_bytes: int,
    seconds: float,
    seed: int,
    links: int = 1,
) -> ColdFigures:
    """One answer, one seed."""
    rates = {f"bert-{place}": rate_rps * part for place, part in enumerate(parts)}
    profiles = dict.fromkeys(rates, bert_on_h100())
    arrivals = poisson(rates, seconds, seed)
    fleet = h100(memory_bytes, peers=links - 1)
    return cold_run(with_cold(name), fleet, profiles, arrivals, _SLO_MS, rates)


def least_link_part(parts: list[float], rate_rps: float, memory_bytes: int) -> float:
    """The least part of the link's time, whatever stays of our curves, divisible."""
    curve = ColdCurve(lasting, bert_on_h100().layers, HostLinks())
    by_link = [ColdPoint(o.kept_bytes, o.copied_bytes, o.copy_ms, 0.0) for o in curve.points]
    edges = []
    for first, last in hull(by_link):
        begin, end = by_link[first], by_link[last]
        nbytes = end.kept_bytes - begin.kept_bytes
        saved_ms = begin.copy_ms - end.copy_ms
        edges += [(rate_rps * part * saved_ms / nbytes, nbytes) for part in parts]
    link_ms, left_bytes = rate_rps * by_link[0].copy_ms, memory_bytes
    for worth, nbytes in sorted(edges, reverse=True):
        taken = min(nbytes, left_bytes)
        left_bytes -= taken
        link_ms -= worth * taken
    return link_ms / 1000.0


if __name__ == "__main__":
    main(many_models)
