"""Why one model got what it got, in words and figures."""

from __future__ import annotations

from interlace.cli.failure import InputError
from interlace.cli.planning.answer import Answer
from interlace.core.plan import Demand
from interlace.perf.bounds.rates import highest_rps
from interlace.perf.latency import Surface, surface


def explain(found: Answer, model: str) -> list[str]:
    """What each share could do for the model, where it was put, and what limits it.

    Raises:
        InputError: the scenario has no such model.
    """
    asked = next((one for one in found.scenario.demand if one.model == model), None)
    if asked is None:
        known = ", ".join(one.model for one in found.scenario.demand)
        raise InputError(f"--explain {model}: the scenario has {known}")
    said = [f"{model}: {asked.rate_rps:g} requests/s within {asked.slo_ms:g} ms"]
    if model in found.scenario.profiles:
        latency = surface(found.scenario.profiles[model])
        said += _shares(found, asked, latency)
        said += _places(found, asked, latency)
    return [*said, *_limits(found, asked)]


def _shares(found: Answer, asked: Demand, latency: Surface) -> list[str]:
    said, best = [], (0.0, 0)
    for share in (s for s in found.scenario.gpu.shares_pct if s in latency.shares_pct):
        largest = latency.largest_batch(
            asked.slo_ms, share, min(asked.max_batch, latency.at_share(share)[-1][0])
        )
        rate = highest_rps(found.scenario.profiles[asked.model], asked, share)
        each = rate / found.scenario.gpu.fraction(share)
        best = max(best, (each, share))
        said.append(
            f"  at {share:3d} %: largest batch within the SLO {largest}, at most {rate:.0f} "
            f"requests/s, which is {each:.0f} for each whole GPU"
            if largest
            else f"  at {share:3d} %: not one row within the SLO"
        )
    if best[1]:
        said.append(f"  most work for the hardware: {best[1]} %")
    return said


def _places(found: Answer, asked: Demand, latency: Surface) -> list[str]:
    said = []
    for part in found.plan.partitions:
        for slot in (s for s in part.slots if s.model == asked.model):
            others = [s.model for s in part.slots if s.model != asked.model]
            beside = f", beside {', '.join(others)}" if others else ", alone"
            run_ms = latency.latency_ms(slot.batch, part.share_pct)
            said.append(
                f"  in {part.id}: {slot.rate_rps:.1f} requests/s at {part.share_pct} % in batches "
                f"of up to {slot.batch} ({run_ms:.1f} ms){beside}"
            )
    return said


def _limits(found: Answer, asked: Demand) -> list[str]:
    said = []
    expected = found.expected.get(asked.model)
    if expected is not None:
        said.append(
            f"  expected: p99 {expected.p99_ms:.1f} ms, {100 * expected.attainment:.2f} % in time"
        )
    price = found.bound.best.price.get(asked.model)
    if price:
        said.append(
            f"  {100 * price:.3f} GPUs for every 100 requests/s more, whoever schedules "
            f"({1 / price:.0f} requests/s fill one)"
        )
    left = found.plan.unserved_rps.get(asked.model)
    if left is not None:
        said.append(f"  not served: {left:.4g} requests/s: {found.plan.reasons.get(asked.model)}")
    return said
