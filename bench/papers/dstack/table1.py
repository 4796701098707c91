"""Table 1: 10,000 images of each of four models, under Triton and under D-STACK.

All requests are there at the start, 10,000 of each model (1,000 without --images; times are then
scaled up). Left open: deadlines (there are none in a job of this kind, so an hour each; plans are
made for Table 6's SLOs at 280/s of each model), and what a request costs beside its inference.
Inference alone takes Triton, one batch of 16 after the other, 63 s at Table 6's runtimes. What we
add: the row of our own scheduler.
"""

from typing import Annotated, Final

import numpy as np

from bench.harness import Report, Row, bars, each, main
from bench.papers.dstack.published import TABLE_1_S
from bench.papers.dstack.trial import of_table_6, planned, run
from bench.papers.dstack.v100 import profiles
from interlace.sim.workload.recorded import ReplayedTrace

MODELS: Final = ("alexnet", "mobilenet", "resnet50", "vgg19")
SYSTEMS: Final = ("triton", "dstack", "interlace")
_IMAGES: Final = 10_000
_HOUR_MS: Final = 3.6e6
#: 10,000 of each in the published time.
_RATE_RPS: Final = 280.0


def table1(*, images: Annotated[int, "of each model; the paper has 10000"] = 1_000) -> Report:
    """Seconds until the last image is answered."""
    found = {name: completion_s(name, images) * _IMAGES / images for name in SYSTEMS}
    rows = each("{}", found, " s", TABLE_1_S)
    ours, printed = found["dstack"] / found["triton"], TABLE_1_S["dstack"] / TABLE_1_S["triton"]
    rows.append(Row("D-STACK saves", 100 * (1 - printed), 100 * (1 - ours), " %"))
    published = [TABLE_1_S.get(name, 0.0) for name in found]
    shown = {"published": published, "ours": list(found.values())}
    return Report(rows, bars(found, shown, "s"), (5.0, 3.0))


def completion_s(name: str, images: int) -> float:
    """When the last of so many images of each model is answered."""
    case = of_table_6(dict.fromkeys(MODELS, _RATE_RPS), profiles())
    patient = case._replace(slos_ms=dict.fromkeys(MODELS, _HOUR_MS))
    jobs = {model: ReplayedTrace(np.zeros(images)) for model in MODELS}
    found = run(name, patient, 1.0, jobs, planned(name, case))
    ended_ms = max(one.answered_ms for one in found.record.served)
    return (ended_ms - found.record.from_ms) / 1000.0


if __name__ == "__main__":
    main(table1)
