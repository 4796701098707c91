"""Multi-Model: several instances of a network on parts of the GPU, against one on all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Final

from bench.gpu.bench import Bench
from bench.gpu.lanes import Lane, Lanes, captured, lanes
from bench.gpu.mechanisms.nets import Net, network
from bench.gpu.mechanisms.published import ADVISED, INSTANCES
from bench.gpu.mechanisms.sides import Side, side, taken, versus
from bench.gpu.rows import Row
from interlace.device.cuda.backend.base import CudaBackend

#: One row, where instances bring most, and eight.
_ROWS: Final = (1, 8)
_NAMES: Final = {"alexnet": "alexnet", "mobilenet": "mobilenet_v2"}


def rows(bench: Bench, backend: CudaBackend) -> Iterator[Row]:
    """As many instances as the paper's Multi-Model advised (Table IV)."""
    for name, (count, share_pct) in ADVISED.items():
        known = network(bench, backend.torch_device, _NAMES.get(name, name), 1)
        for batch in _ROWS:
            net = known.with_rows(batch)
            with lanes(backend.driver) as cut:
                on = _side(bench, backend, net, _parts(cut, count), batch)
                off = _side(bench, backend, net, [cut.plain()], batch)
            what = f"Multi-Model: {name}, {count} x {share_pct} % over one, {batch} rows"
            yield versus(what, on, off, "rps", INSTANCES)


def _parts(cut: Lanes, count: int) -> list[Lane]:
    """Streams on equal numbers of atoms, none on two."""
    atoms = cut.split.atoms
    each = len(atoms) // count
    return [cut.on(atoms[place * each : (place + 1) * each]) for place in range(count)]


def _side(bench: Bench, backend: CudaBackend, net: Net, parts: Sequence[Lane], batch: int) -> Side:
    """A batch of each instance at once, again when all have ended."""
    driver = backend.driver
    with ExitStack() as stack:
        graphs = [
            stack.enter_context(captured(backend, lane, net.with_rows(batch).body()))
            for lane in parts
        ]
        go = _all(driver.launch_graph, graphs, parts)
        took_ms, cpu_ms = taken(driver, [one.stream for one in parts], go, bench.size(60, 2))
    return side(took_ms, batch * len(parts), cpu_ms=cpu_ms / len(parts))


def _all(
    launch: Callable[[int, int], Any], graphs: Sequence[int], parts: Sequence[Lane]
) -> Callable[[], None]:
    def go() -> None:
        for graph, lane in zip(graphs, parts, strict=True):
            launch(graph, lane.stream)

    return go
