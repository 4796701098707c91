"""Figure 12: cold batches of 1 to 8 rows, their throughput over Baseline's at one row.

Printed: for ResNet-50 PT + DHA is 1.12 to 1.26 times PipeSwitch at every batch; for the
transformers the difference becomes narrow. A larger batch runs longer and reads more of the host.
"""

from bench.harness import Report, Row, curves, main
from bench.papers.deepplan.v100 import cold_ms, layers

MODELS = ("resnet50", "bert_base", "roberta_large", "gpt2_medium")
_BATCHES = (1, 2, 4, 8)
_WAYS = ("copy", "pipeswitch", "deepplan-dha", "deepplan", "interlace")


def figure12() -> Report:
    """Four models at four batches."""
    rows: list[Row] = []
    lines: dict[str, tuple[list[float], list[float]]] = {}
    for model in MODELS:
        base_ms = cold_ms("copy", layers(model))
        times = {way: [cold_ms(way, layers(model, batch)) for batch in _BATCHES] for way in _WAYS}
        gains = [p / d for p, d in zip(times["pipeswitch"], times["deepplan"], strict=True)]
        for batch, gain in zip(_BATCHES, gains, strict=True):
            rows.append(Row(f"{model}, {batch} rows: PT + DHA over PipeSwitch", None, gain))
        if model == "resnet50":
            rows.append(Row("ResNet-50: least gain", 1.12, min(gains)))
            rows.append(Row("ResNet-50: largest gain", 1.26, max(gains)))
        for way in ("pipeswitch", "deepplan"):
            over = [
                batch * base_ms / taken_ms
                for batch, taken_ms in zip(_BATCHES, times[way], strict=True)
            ]
            lines[f"{model}, {way}"] = ([float(batch) for batch in _BATCHES], over)
    return Report(rows, curves(lines, "-o", xlabel="rows", ylabel="throughput / Baseline"))


if __name__ == "__main__":
    main(figure12)
