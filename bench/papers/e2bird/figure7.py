"""Figure 7: 256 inferences split over N workers, and 256 pictures copied in N pieces.

Computing is simulated: N workers of 256 / N rows begin together on a GPU that shares equally among
rows (section 7.2), with the first worker's latency a straight line. That curve is flat by the
hypothesis; the paper measures it flat up to 64 workers and rising at 128 and 256, which a cost for
each stream (`switch_part`) beyond 64 would have to put in. It is shown without.

Copying is measured on this machine: 256 pictures of 602,112 bytes are copied into the CPU device's
ring, as its staging thread does, in N pieces. The paper's copies go over PCIe; the question, what
splitting costs, is the same.
"""

import time
from typing import Final

import numpy as np

from bench.harness import Report, Row, curves, main
from bench.papers.e2bird.published import COPY_START_MS, FLAT_UP_TO_WORKERS
from bench.papers.e2bird.titan import PICTURE
from interlace.device.simulated.contention import RunningBatch, equal_rows
from interlace.perf.latency import Surface
from interlace.shm.arena import Arena

INFERENCES: Final = 256
PIECES: Final = tuple(1 << power for power in range(9))
#: A worker's latency: 2 ms and 1.25 ms a row (the slope of Table 1's Res50).
FAKENET: Final = Surface({100: ((1, 3.25), (256, 322.0))})
_REPEATS: Final = 7


def figure7(*, pictures: int = INFERENCES) -> Report:
    """Computing and copying by the number of pieces."""
    computed = {count: computed_ms(count) for count in PIECES}
    copied = copies_ms(pictures)
    flat = [count for count in PIECES if computed[count] <= 1.05 * computed[1]]
    most = max(copied)
    apart_ms = (copied[most] - min(copied.values())) / INFERENCES
    rows = [
        Row("computing: flat up to that many workers", FLAT_UP_TO_WORKERS, max(flat)),
        Row("computing: 64 workers over one", 1.0, computed[64] / computed[1]),
        Row("copying: a picture of its own costs at most", COPY_START_MS, apart_ms, " ms"),
        Row("copying: all in one piece", None, copied[1], " ms"),
        Row(f"copying: in {most} pieces", None, copied[most], " ms"),
    ]
    lines = {
        name: (list(seen), list(seen.values()))
        for name, seen in (("computing", computed), ("copying", copied))
    }
    label = "workers or pieces"
    drawn = curves(lines, "o-", xlabel=label, ylabel="ms for 256", xscale="log", ylim=(0, None))
    return Report(rows, drawn, (6.0, 3.0))


def computed_ms(workers: int) -> float:
    """Until all workers have ended; equal ones that share equally end together."""
    one = RunningBatch("fakenet", INFERENCES // workers, 100, FAKENET)
    (speed, *_) = equal_rows([one] * workers)
    return FAKENET.latency_ms(one.rows, 100) / speed


def copied_ms(pieces: int, pictures: int, arena: Arena, source: bytes) -> float:
    """The fastest of a few copies of all pictures in that many pieces."""
    nbytes = len(source) // pieces
    whole = memoryview(source)
    best_s = float("inf")
    for _ in range(_REPEATS):
        began_s = time.perf_counter()
        for piece in range(pieces):
            view = arena.view(piece * nbytes, nbytes)
            part = whole[piece * nbytes : (piece + 1) * nbytes]
            np.copyto(np.frombuffer(view, np.uint8), np.frombuffer(part, np.uint8))
        best_s = min(best_s, time.perf_counter() - began_s)
    return 1e3 * best_s * INFERENCES / pictures


def copies_ms(pictures: int) -> dict[int, float]:
    """Times for 256 pictures by the number of pieces, taken from ``pictures`` of them."""
    source = bytes(PICTURE.input_bytes * pictures)
    arena = Arena.create(len(source))
    try:
        arena.view(0, len(source))[:] = source  # pages are taken now, not while it is timed
        pieces = [count for count in PIECES if count <= pictures]
        return {count: copied_ms(count, pictures, arena, source) for count in pieces}
    finally:
        arena.close()


if __name__ == "__main__":
    main(figure7)
