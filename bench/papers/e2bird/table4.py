"""Table 4: the configurations that E-Ebird's offline phase finds for Res152, and its engine.

python -m bench.papers.e2bird.table4

The search of `interlace.perf.worker_sizes` over all configurations, on the simulated GPU's law of
streams. The law was fitted with this table in view (titan.py): that five constants are enough for
four searches is what is shown. The printed engine has one worker of 4, and the printed row of 16
wants two: the engine found here has them. Res50 and Res101, whose tables are not printed, are
searched too.
"""

from __future__ import annotations

from matplotlib.axes import Axes

from bench.papers.e2bird.published import TABLE_4, TABLE_4_ENGINE
from bench.papers.e2bird.show import COLOURS, Row, report
from bench.papers.e2bird.titan import MODELS, STREAMS, profile
from interlace.perf.latency import surface
from interlace.perf.worker_sizes import Guideline, search


def guideline(model: str) -> Guideline:
    """What the offline phase finds."""
    return search(STREAMS.measure(surface(profile(model), "median_ms")))


def main(arguments: list[str] | None = None) -> list[Row]:
    """Print, draw, and return the rows."""
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

    def draw(axes: Axes) -> None:
        for index, (model, guide) in enumerate(found.items()):
            places = [power + (index - 1) * 0.25 for power in range(6)]
            axes.bar(places, guide.engine, 0.25, color=COLOURS[index], label=model)
        axes.plot(range(6), TABLE_4_ENGINE, "k_", ms=16, label="printed, res152")
        axes.set(xlabel="log2 of the workers' batch", ylabel="workers in the engine")
        axes.legend(frameon=False, fontsize=8)

    return report(__doc__, rows, draw, "table4", arguments)


if __name__ == "__main__":
    main()
