"""Table 3, whole: which layers eight plans load and which they leave on the host.

The decisions of the published plans, initial and DeepPlan (DHA), against those of the same two
rules on layer times that are shaped after the paper (`bench/papers/deepplan/v100.py`). Layers
without weights are not counted. The rules are the authors' to the last tie; what differs comes from
the times, which were never published.
"""

from bench.harness import Report, Row, bars, main
from bench.papers.deepplan.published import MODELS
from bench.papers.deepplan.v100 import layers, planned, plans
from interlace.core.loading import HostLinks, WeightPath
from interlace.policy.cold_starts.deepplan import initial_choice


def table3() -> Report:
    """The part of decisions that agree, by model."""
    rows: list[Row] = []
    initial, final = [], []
    for model in MODELS:
        one, other, count = agreeing(model)
        initial.append(100 * one / count)
        final.append(100 * other / count)
        rows.append(Row(f"{model}, {count} layers: initial", 100.0, initial[-1], " %"))
        rows.append(Row(f"{model}, {count} layers: DeepPlan (DHA)", 100.0, final[-1], " %"))
    series = {"initial": initial, "DeepPlan (DHA)": final}
    return Report(rows, bars(MODELS, series, "decisions as published, %"), (8.0, 3.0))


def agreeing(model: str) -> tuple[int, int, int]:
    """Decisions as published: initial, planned; and layers with weights."""
    found = layers(model)
    first = initial_choice(found)
    steps = planned("deepplan-dha", found, HostLinks())
    weighty = [index for index, one in enumerate(plans()[model]) if one.nbytes]
    published = plans()[model]
    same_first = sum(first[index] == published[index].initial for index in weighty)
    same_planned = sum(
        (steps[index].via is WeightPath.HOST) == published[index].planned for index in weighty
    )
    return same_first, same_planned, len(weighty)


if __name__ == "__main__":
    main(table3)
