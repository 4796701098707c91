"""Table 1: latency and throughput of one worker, by batch size.

The latencies are the paper's own: they are the profiles that every other command simulates with.
Here one worker runs full batches back to back on the simulated GPU, and the throughput that comes
out is held against the printed one. It shows that the simulator adds nothing of its own, no more.
"""

from matplotlib.figure import Figure

from bench.harness import COLOURS, Report, Row, each, main
from bench.papers.e2bird.contest import Entrant, latencies_ms
from bench.papers.e2bird.published import TABLE_1_RPS
from bench.papers.e2bird.titan import MODELS, tf_gpu
from interlace.core.plan import ElasticBatching, Partition, Plan, Slot
from interlace.policy.catalog import resolve

_BATCHES = 6


def table1() -> Report:
    """Throughput of one worker by batch."""
    ours = {m: {b: throughput_rps(m, b) for b in TABLE_1_RPS[m]} for m in MODELS}
    rows: list[Row] = []
    for model in MODELS:
        rows += each(f"{model}, batch {{}}", ours[model], "/s", TABLE_1_RPS[model])

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for model, colour in zip(MODELS, COLOURS, strict=False):
            axes.plot(list(ours[model]), list(ours[model].values()), color=colour, label=model)
            axes.plot(list(ours[model]), list(TABLE_1_RPS[model].values()), "o", color=colour)
        axes.set(xlabel="batch", ylabel="requests/s (dots: paper)", ylim=(0, None))
        axes.legend(frameon=False, fontsize=8)

    return Report(rows, draw, (6.0, 3.0))


def throughput_rps(model: str, batch: int) -> float:
    """Requests/s of one worker that always has a full batch."""
    worker = Partition("gpu0:0", "gpu0", 100, (Slot(model, batch, 0.0),))
    plan = Plan((worker,), overlapping=True, elastic={model: ElasticBatching(batch)})
    entrant = Entrant(resolve("nebird"), plan, tf_gpu)
    count = batch * _BATCHES
    return 1000.0 * count / float(latencies_ms(entrant, model, [0.0] * count).max())


if __name__ == "__main__":
    main(table1)
