"""Figure 13 on this machine's cores: the systems that serve, live, on a small network."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np

from bench.fidelity.live import play
from bench.fidelity.stand import Stand, network, write_network
from bench.harness import Report, curves, each
from bench.papers.e2bird.contest import Latencies, in_order, low_then_high, saved_pct
from bench.papers.e2bird.titan import OPT_WAIT_MS, QOS_MS
from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profile
from interlace.policy.base import System
from interlace.policy.catalog import resolve
from interlace.policy.dispatchers.dynamic_batching import DynamicBatching
from interlace.profiling.sweep import SweepSettings
from interlace.sim.arrivals import Arrivals

LOW, HIGH = 150, 250
_HIGH_PART, _LOW_PART = 0.4, 0.2
_MAX_BATCH = 16
_PATIENT_MS = 60_000.0


async def live(
    *,
    requests: int = LOW + HIGH,
    samples: Annotated[int, "of each batch, when the network is profiled"] = 30,
) -> Report:
    """Figure 13 on this machine's cores: the systems that serve, live, on a small network.

    Worker processes of several batch sizes on the same cores, inputs staged into a ring in shared
    memory, against one worker that waits 30 ms for company. Nothing is simulated, and no figure of
    the paper is for a processor. The network is five layers of 2048 x 2048 weights, which are read
    once a batch: there batching pays on a processor as it does on a GPU (a small convolution is
    faster row by row). Load is high at 40 % of what one worker of the largest batch serves, low at
    a fifth of that.
    """
    with TemporaryDirectory(prefix="interlace-e2bird-") as folder:
        root = Path(folder)
        terms = f"slo_ms = {QOS_MS}\nmax_batch = {_MAX_BATCH}\n"
        write_network(root, network(2048, 5, "torch.nn.ReLU()"), terms)
        found = await measured(root, requests, SweepSettings(samples=samples, budget_s=0.4))
    low = requests * LOW // (LOW + HIGH)
    phases = {"low": slice(0, low), "high": slice(low, None)}
    means = {
        (name, what): float(seen[part].mean())
        for name, seen in found.items()
        for what, part in phases.items()
    }
    saved = {
        (name, what): saved_pct(found["TF-Serving"], found[name], part)
        for name in ("N-Ebird", "E-Ebird")
        for what, part in phases.items()
    }
    rows = each("{}, mean at {} load", means, " ms") + each("{} saves at {} load", saved, " %")
    lines = {name: (range(len(seen)), seen.tolist()) for name, seen in found.items()}
    drawn = curves(lines, xlabel="request", ylabel="latency, ms", ylim=(0, None))
    return Report(rows, drawn, (6.0, 3.0))


def systems() -> dict[str, System]:
    """The three that are compared."""
    tf = replace(resolve("tfserving"), dispatcher=DynamicBatching(wait_ms=OPT_WAIT_MS))
    return {"TF-Serving": tf, "N-Ebird": resolve("nebird"), "E-Ebird": resolve("e2bird")}


def trace(profile: Profile, requests: int) -> Arrivals:
    """Low load, then high, in the paper's proportion."""
    full_ms = profile.points[_MAX_BATCH, 100].median_ms
    high_rps = _HIGH_PART * 1000.0 * _MAX_BATCH / full_ms
    low_count = requests * LOW // (LOW + HIGH)
    times = np.array(low_then_high(high_rps, _LOW_PART, low_count, requests - low_count))
    which = np.zeros(len(times), np.int32)
    return Arrivals((profile.model,), times, which, float(times[-1] + 1.0) / 1000.0)


async def measured(root: Path, requests: int, settings: SweepSettings) -> dict[str, Latencies]:
    """Latency of each request under each system, one system after the other."""
    found: dict[str, Latencies] = {}
    async with Stand(root, ["network"]) as stand:
        profiles = await stand.profiles(settings)
        ((key, profile),) = profiles.items()
        arrivals = trace(profile, requests)
        for name, one in systems().items():
            found[name] = await _played(stand, one, profiles, key, arrivals)
    return found


async def _played(
    stand: Stand, one: System, profiles: Mapping[str, Profile], key: str, arrivals: Arrivals
) -> Latencies:
    asked = Demand(key, 10.0, QOS_MS, _MAX_BATCH)
    plan = one.planner([asked], Fleet((stand.device.gpu,)), profiles, Plan())
    patient = replace(asked, slo_ms=_PATIENT_MS)
    return in_order(await play(stand, one, plan, [patient], profiles, arrivals))
