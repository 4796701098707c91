"""Figure 12: configurations of 32 rows in flight, Res152: the fastest and the slowest.

Workers of a configuration begin together on the simulated GPU. Its law of streams was fitted to
the published latencies (titan.py), so these are inputs. That no other of the 200 configurations is
faster than the published one, and how many beat a single worker, are results.

(The figure's caption names Resnet 50; its text and its 93.7 ms are those of Resnet 152.)
"""

from bench.harness import Report, Row, curves, main
from bench.papers.e2bird.published import FASTEST_MS, SINGLE_MS, SLOWEST_FACTOR, TABLE_4
from bench.papers.e2bird.titan import STREAMS, profile
from interlace.perf.latency import surface
from interlace.perf.worker_sizes import MOST_SINGLES, Configuration, configurations

MODEL = "res152"
TOTAL = 32
_SHOWN = 6


def figure12() -> Report:
    """Every configuration's latency."""
    found = tried()
    fastest_ms, fastest = found[0]
    single_ms = next(ms for ms, one in found if sum(one) == 1)
    faster = sum(1 for ms, _ in found if ms < single_ms - 1e-6)
    rows = [
        Row(f"fastest: {list(fastest)}", FASTEST_MS, fastest_ms, " ms"),
        Row("it is the published one (1 = so)", 1.0, float(fastest == TABLE_4[TOTAL])),
        Row("a single worker", SINGLE_MS, single_ms, " ms"),
        Row("slowest / fastest", SLOWEST_FACTOR, found[-1][0] / fastest_ms),
        Row(f"of {len(found)}, faster than the single", None, faster),
        *(Row(f"next: {list(one)}", None, ms, " ms") for ms, one in found[1:_SHOWN]),
    ]
    lines = {f"{ms:.1f} ms": (range(6), one) for ms, one in [*found[:_SHOWN], *found[-2:]]}
    drawn = curves(lines, "o-", xlabel="log2 of a batch", ylabel="workers", yscale="symlog")
    return Report(rows, drawn, (6.0, 3.0))


def tried() -> list[tuple[float, Configuration]]:
    """Mean latency of every configuration that the published search tries, fastest first."""
    measure = STREAMS.measure(surface(profile(MODEL), "median_ms"))
    found = [(measure(one), one) for one in configurations(TOTAL) if one[0] <= MOST_SINGLES]
    return sorted(found, key=lambda pair: (round(pair[0], 6), sum(pair[1])))


if __name__ == "__main__":
    main(figure12)
