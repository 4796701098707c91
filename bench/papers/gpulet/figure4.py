"""Figure 4: scenarios that squishy bin packing schedules, on whole GPUs and on halves.

The paper says how the bars differ, not how high they are: "most" of what whole GPUs cannot
schedule, halves can. Left open: how many GPUs (four are taken, as in section 5.2), and the
latencies (not published; profiles shaped after Table 4 and Figure 3 are used). On those, four
GPUs serve nearly all scenarios, so doubled rates are shown too. A sample of the
scenarios; --sample 0 asks all.
"""

from typing import Annotated, Final

from bench.harness import Report, Row, bars, main
from bench.planning.scenarios import Question, asked, every

LOADS: Final = (1.0, 2.0)


def figure4(*, sample: Annotated[int, "scenarios of 19,682; 0 for all"] = 1_500) -> Report:
    """What whole GPUs and halves schedule."""
    found = counts(sample)
    rows: list[Row] = []
    for load, (total, whole, halves, shifted) in found.items():
        name = f"rates x{load:g}, of {total}"
        lost = total - whole
        # "Most" of the unschedulable: the paper's word for more than half.
        part = 100.0 * shifted / lost if lost else 100.0
        rows += [
            Row(f"{name}: whole GPUs", None, whole),
            Row(f"{name}: two halves", None, halves),
            Row(f"{name}: of the rest, halves serve", None, part, " %"),
        ]
    series = {
        "SBP with halves": [100.0 * h / t for t, _, h, _ in found.values()],
        "SBP": [100.0 * w / t for t, w, _, _ in found.values()],
    }
    groups = [f"rates x{load:g}" for load in found]
    return Report(rows, bars(groups, series, "schedulable, %"), (5.0, 3.0))


def counts(sample: int, gpus: int = 4) -> dict[float, tuple[int, int, int, int]]:
    """By load: scenarios asked, served whole, served halved, and of the unserved those shifted."""
    vectors = every(sample)
    found = {}
    for load in LOADS:
        whole = asked(Question("sbp, uncut", gpus, load), vectors)
        halves = asked(Question("sbp, halves", gpus, load), vectors)
        shifted = int((halves & ~whole).sum())
        found[load] = (len(vectors), int(whole.sum()), int(halves.sum()), shifted)
    return found


if __name__ == "__main__":
    main(figure4)
