"""Table II: instances of a model in one T4 of 16 GB, with weights of their own and shared.

How many fit is asked of the simulated device, which refuses a load it has no memory for. The text
gives the instances gained, not what an instance takes beside its weights: 1,230 MB are taken, what
gpulet's released code counts for a process with its framework. Shown beside is the range of that
figure in which the printed gain comes out. Weights are those of the networks as 32-bit floats.

Then the same question live on this machine: worker processes that hold 134 MB of weights, their own
or shared, and what each takes.
"""

from dataclasses import replace
from typing import Annotated, Final

import numpy as np

from bench.harness import Report, Row, bars, curves, main, panels
from bench.papers.primitives.live import workers_bytes
from bench.papers.primitives.published import MORE_INSTANCES, MORE_MODELS_PCT
from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.hardware import Gpu
from interlace.core.messages import CreatePartition, Load, WorkFinished
from interlace.core.profile import LatencyPoint, Profile
from interlace.device.simulated.device import SimulatedDevice
from interlace.device.simulated.physics import MechanismCosts
from interlace.runtime.clock import SimClock

T4: Final = GPU_KINDS["t4"]
#: Millions of weights: 25.6, 143.7 and 25.0.
WEIGHTS_BYTES: Final = {"resnet50": 102_400_000, "vgg19": 574_800_000, "resnext50": 100_100_000}
PRIVATE_BYTES: Final = 1_230_000_000
_LIMIT: Final = 100


def table2(
    *,
    workers: Annotated[int, "of the live part, at most"] = 4,
    width: Annotated[int, "of its network's layers"] = 2048,
) -> Report:
    """Instances that fit, and the memory of live workers."""
    rows: list[Row] = []
    counts: dict[str, tuple[int, int]] = {}
    for model, gain in MORE_INSTANCES.items():
        own, shared = (fit(WEIGHTS_BYTES[model], PRIVATE_BYTES, s) for s in (False, True))
        counts[model] = own, shared
        least, most = consistent_bytes(model)
        rows += [
            Row(f"{model}: instances more with shared weights", gain, shared - own),
            Row(f"{model}: instances with weights of their own", None, own),
            Row(f"{model}: as printed from this private memory on", None, least / 1e6, " MB"),
            Row(f"{model}: up to this (not all between)", None, most / 1e6, " MB"),
        ]
    gained = 100.0 * (sum(s for _, s in counts.values()) / sum(o for o, _ in counts.values()) - 1)
    rows.append(Row("models more in all (20 to 30)", MORE_MODELS_PCT[0], gained, " %"))
    live = {shared: workers_bytes(shared, workers, width) for shared in (False, True)}
    for shared, name in ((False, "their own"), (True, "shared")):
        each = float(np.diff(live[shared]).mean()) / 1e6
        rows.append(Row(f"live: a worker more, weights {name}", None, each, " MB"))
    series = {
        name: [count[place] for count in counts.values()]
        for place, name in enumerate(("own weights", "shared"))
    }
    lines = {
        "shared" if shared else "own weights": (range(1, workers + 1), [one / 1e6 for one in taken])
        for shared, taken in live.items()
    }
    drawn = panels(
        bars(counts, series, "instances", title="simulated T4"),
        curves(lines, "o-", title="live", xlabel="workers", ylabel="MB", ylim=(0, None)),
    )
    return Report(rows, drawn, (6.4, 3.0))


def fit(weights_bytes: int, private_bytes: int, shared: bool) -> int:
    """Instances that a simulated T4 takes before it refuses one."""
    names = ["model"] * _LIMIT if shared else [f"model{index}" for index in range(_LIMIT)]
    points = {(1, 5): LatencyPoint(1.0, 1.0, 1.0, 1)}
    profiles = {
        name: Profile(name, "", "t4", weights_bytes, private_bytes, points) for name in names
    }
    clock, finished = SimClock(), list[WorkFinished]()
    gpu: Gpu = replace(T4, id="gpu0")
    device = SimulatedDevice(gpu, clock, profiles, MechanismCosts(0.0, 0.0, 0.0))
    for index, name in enumerate(names):
        device.do(CreatePartition("gpu0", str(index), 5), lambda done: None)
        device.do(Load("gpu0", str(index), name), finished.append)
    clock.run()
    return sum(one.failure is None for one in finished)


def consistent_bytes(model: str) -> tuple[int, int]:
    """Least and most private memory, in steps of 10 MB, with which the printed gain comes out."""
    weights, gain = WEIGHTS_BYTES[model], MORE_INSTANCES[model]
    memory = T4.memory_bytes
    steps = range(300_000_000, 5_000_000_000, 10_000_000)
    own = [memory // (weights + private) for private in steps]
    shared = [(memory - weights) // private for private in steps]
    found = [p for p, a, b in zip(steps, own, shared, strict=True) if b - a == gain]
    return min(found), max(found)


if __name__ == "__main__":
    main(table2)
