"""Figure 5 and Table 1: layers loaded and then run, or run on the host's memory.

Table 1's cache lines are what reading from the host was shaped after; that ours are the same for
all six layers, and who wins in each panel, is what can be compared: embeddings on the host, small
and medium convolutions alike, large ones and linear layers loaded.
"""

from bench.harness import Report, Row, bars, main
from bench.papers.deepplan.published import TABLE_1
from bench.papers.deepplan.v100 import layers, lines_read, plans

#: Models and kinds of Table 1's rows, and of the small convolution of the figure.
_FOUND = {"embedding": "bert_base", "convolution": "resnet50", "linear": "bert_base"}
_KINDS = {"embedding": "Embedding", "convolution": "Conv2d", "linear": "Linear"}
_SMALL = "convolution, 0.56 MB"


def figure5() -> Report:
    """Each layer by both ways."""
    rows: list[Row] = []
    ways: dict[str, list[float]] = {"load": [], "run": [], "direct host access": []}
    names = [*TABLE_1, _SMALL]
    for name in names:
        what, _, size = name.partition(", ")
        model, index = _layer(what, float(size.removesuffix(" MB")))
        one = layers(model)[index]
        if name in TABLE_1:
            rows.append(
                Row(f"{name}: cache lines read", TABLE_1[name][2], lines_read(model)[index])
            )
        rows.append(
            Row(f"{name}: host / load and run", None, one.run_host_ms / (one.copy_ms + one.run_ms))
        )
        for way, value in zip(ways, (one.copy_ms, one.run_ms, one.run_host_ms), strict=True):
            ways[way].append(value)
    return Report(rows, bars(names, ways, "ms"), (9.0, 3.0))


def _layer(what: str, size_mb: float) -> tuple[str, int]:
    """The model and the place of its layer of that kind that is nearest in size."""
    model = _FOUND[what]
    there = [i for i, one in enumerate(plans()[model]) if one.kind == _KINDS[what]]
    return model, min(there, key=lambda i: abs(plans()[model][i].nbytes / (1 << 20) - size_mb))


if __name__ == "__main__":
    main(figure5)
