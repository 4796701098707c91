"""Figure 16: the same on two A5000 with PCIe 4.0: the trend stays.

The figure has no numbers. A copy takes half the bytes' time, execution what FP32 takes on this GPU
(`bench/papers/deepplan/v100.py`).
"""

from bench.harness import Report, bars, each, main
from bench.papers.deepplan.published import MODELS
from bench.papers.deepplan.v100 import A5000, cold_ms, layers

_WAYS = ("pipeswitch", "deepplan-dha", "deepplan-pt", "deepplan", "interlace")


def figure16() -> Report:
    """All models over Baseline on the other machine."""
    times = {
        model: {
            way: cold_ms(way, layers(model, machine=A5000), A5000.two_links)
            for way in ("copy", *_WAYS)
        }
        for model in MODELS
    }
    gains = {way: {m: one["copy"] / one[way] for m, one in times.items()} for way in _WAYS}
    rows = [line for way in _WAYS for line in each(f"{way} over Baseline, {{}}", gains[way])]
    series = {way: list(one.values()) for way, one in gains.items()}
    return Report(rows, bars(MODELS, series, "speedup over Baseline"), (9.0, 3.0))


if __name__ == "__main__":
    main(figure16)
