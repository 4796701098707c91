"""Table 4: the configurations that E-Ebird's offline phase finds for Res152, and its engine.

The search of `interlace.perf.worker_sizes` over all configurations, on the simulated GPU's law of
streams. The law was fitted with this table in view (titan.py): that five constants are enough for
four searches is what is shown. The printed engine has one worker of 4, and the printed row of 16
wants two: the engine found here has them. Res50 and Res101, whose tables are not printed, are
searched too.
"""

from matplotlib.figure import Figure

from bench.harness import Report, Row, grouped_bars, main
from bench.papers.e2bird.published import TABLE_4, TABLE_4_ENGINE
from bench.papers.e2bird.titan import MODELS, STREAMS, profile
from interlace.perf.latency import surface
from interlace.perf.worker_sizes import Guideline, search


def table4() -> Report:
    """The best configurations of every model."""
    found = {model: guideline(model) for model in MODELS}
    rows = [
        Row(f"res152, {total} rows: {list(one)} as printed (1 = so)", 1.0, float(one == known))
        for (total, one), known in zip(found["res152"].best.items(), TABLE_4.values(), strict=True)
    ]
    engine = found["res152"].engine
    rows.append(Row(f"res152, engine: workers, {list(engine)}", sum(TABLE_4_ENGINE), sum(engine)))
    for model in ("res50", "res101"):
        for total, one in found[model].best.items():
            rows.append(Row(f"{model}, {total} rows: workers, {list(one)}", None, sum(one)))

    def draw(figure: Figure) -> None:
        series = {model: guide.engine for model, guide in found.items()}
        axes = grouped_bars(figure, list("012345"), series, "workers in the engine")
        axes.plot(range(6), TABLE_4_ENGINE, "k_", ms=16, label="printed, res152")
        axes.set_xlabel("log2 of the workers' batch")
        axes.legend(frameon=False, fontsize=8)

    return Report(rows, draw, (6.0, 3.0))


def guideline(model: str) -> Guideline:
    """What the offline phase finds."""
    return search(STREAMS.measure(surface(profile(model), "median_ms")))


if __name__ == "__main__":
    main(table4)
