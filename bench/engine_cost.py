"""Cost of the engine per event and per request: `python -m bench.engine_cost`.

Plays one seeded Poisson trace through the runtime in virtual time and prints microseconds of
machine time, for several numbers of models; the simulated device and the heap are included and
named.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections import Counter

from interlace.core.request import Outcome
from interlace.policy.catalog import CATALOG
from interlace.policy.catalog import system as row
from tests.builders import World, line_profile


def _play(models: int, requests: int, system: str, load: float, seed: int) -> dict[str, float]:
    profiles = {f"m{i}": line_profile(f"m{i}", 0.5, 0.05) for i in range(models)}
    world = World(profiles, system=row(system))
    world.deploy(dict.fromkeys(profiles, 50.0))
    world.run(2_000)
    world.log.clear()
    chooser, at_ms = random.Random(seed), world.clock.now_ms()
    capacity_per_ms = 2 * 1.0 / (0.5 / 8 + 0.05)
    for _ in range(requests):
        at_ms += chooser.expovariate(load * capacity_per_ms)
        model = chooser.choice(list(profiles))
        world.clock.call_at(at_ms, lambda model=model: world.send(model, 50.0))
    started_s = time.perf_counter()
    world.run(at_ms - world.clock.now_ms() + 500.0)
    spent_us = (time.perf_counter() - started_s) * 1e6
    outcomes = Counter(reply.outcome for _, reply in world.replies)
    return {
        "us_per_request": spent_us / requests,
        "us_per_event": spent_us / max(1, len(world.log)),
        "answered_in_time": outcomes[Outcome.OK] / requests,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--load", type=float, default=0.8)
    parser.add_argument("--system", default="interlace", choices=sorted(CATALOG))
    parser.add_argument("--models", type=int, nargs="+", default=[1, 6, 16])
    asked = parser.parse_args()
    for models in asked.models:
        runs = [
            _play(models, asked.requests, asked.system, asked.load, seed)
            for seed in range(asked.reps)
        ]
        figures = {
            name: {
                "min": round(min(run[name] for run in runs), 2),
                "median": round(statistics.median(run[name] for run in runs), 2),
                "max": round(max(run[name] for run in runs), 2),
            }
            for name in runs[0]
        }
        print(json.dumps({"models": models, "system": asked.system, **figures}))


if __name__ == "__main__":
    main()
