"""Figure 2: what part of a cold request under PipeSwitch is stall.

The shares' middles went into the warm times of all models but BERT-Base and ResNet-50
(`bench/papers/deepplan/v100.py`): of the others it says that the timeline gives back what went in.
"""

from bench.harness import Report, Row, bars, main
from bench.papers.deepplan.published import MODELS, STALLED_BERT, STALLED_OTHERS
from bench.papers.deepplan.v100 import cold_ms, layers, warm_ms


def figure2() -> Report:
    """Every model's cold request under PipeSwitch."""
    stalled = {model: 1 - warm_ms(model) / cold_ms("pipeswitch", layers(model)) for model in MODELS}
    rows = [
        Row(
            f"stalled, {model}",
            100 * (STALLED_BERT if "bert" in model else STALLED_OTHERS),
            100 * part,
            " %",
        )
        for model, part in stalled.items()
    ]
    series = {"execution": [1 - part for part in stalled.values()], "stall": list(stalled.values())}
    return Report(rows, bars(MODELS, series, "part of the request"), (8.0, 3.0))


if __name__ == "__main__":
    main(figure2)
