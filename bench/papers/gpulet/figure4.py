"""Figure 4: scenarios that squishy bin packing schedules, on whole GPUs and on halves.

python -m bench.papers.gpulet.figure4 [--full]

The paper says how the bars differ, not how high they are: "most" of what whole GPUs cannot
schedule, halves can. Left open: how many GPUs (four are taken, as in section 5.2), and the
latencies (not published; profiles shaped after Table 4 and Figure 3 are used). On those, four
GPUs serve nearly all scenarios, so doubled rates are shown too. Without --full, a sample of the
scenarios.
"""

from __future__ import annotations

from bench.papers.gpulet.compare import Row, bars, options, save, show
from bench.planning.scenarios import Question, asked, every

LOADS = (1.0, 2.0)
_SAMPLE = 1_500


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


def main(arguments: list[str] | None = None, sample: int = _SAMPLE) -> list[Row]:
    """Print, draw, and return the rows."""
    chosen = options(__doc__).parse_args(arguments)
    found = counts(0 if chosen.full else sample)
    rows: list[Row] = []
    for load, (total, whole, halves, shifted) in found.items():
        name = f"rates x{load:g}, of {total}"
        rows.append(Row(f"{name}: whole GPUs", None, whole))
        rows.append(Row(f"{name}: two halves", None, halves))
        lost = total - whole
        part = 100.0 * shifted / lost if lost else 100.0
        # "Most" of the unschedulable: the paper's word for more than half.
        rows.append(Row(f"{name}: of the rest, halves serve", None, part, " %"))
    show("gpulet Figure 4: schedulable scenarios", __doc__ or "", rows)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3), layout="constrained")
    series = {
        "SBP with halves": [100.0 * h / t for t, _, h, _ in found.values()],
        "SBP": [100.0 * w / t for t, w, _, _ in found.values()],
    }
    bars(figure, [f"rates x{load:g}" for load in found], series, "schedulable, %")
    save(figure, chosen.out, "figure4")
    return rows


if __name__ == "__main__":
    main()
