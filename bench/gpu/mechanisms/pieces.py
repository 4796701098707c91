"""The input pool's price: inputs copied piece by piece, and work split over streams (Figure 7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Final

from bench.gpu.bench import Bench
from bench.gpu.lanes import allocated, captured, lanes, mapped, middle, times_ms, words
from bench.gpu.mechanisms.nets import network
from bench.gpu.mechanisms.published import COPY_START_MS, FLAT_UP_TO
from bench.gpu.mechanisms.sides import taken
from bench.gpu.rows import Row, judged
from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.driver.api import MappedBlock

_INFERENCES: Final = 256
_PICTURE_BYTES: Final = 150_528
_WORKERS: Final = (1, 4, 16, 64)


def rows(bench: Bench, backend: CudaBackend) -> Iterator[Row]:
    """Pieces by the copy engine and by kernels, then workers."""
    yield from _copies(bench, backend)
    yield _computing(bench, backend)


def _copies(bench: Bench, backend: CudaBackend) -> Iterator[Row]:
    """256 pictures in one piece and in 256: what a piece costs to start."""
    driver, (count, size) = backend.driver, bench.size((_INFERENCES, _PICTURE_BYTES), (8, 64))
    with ExitStack() as stack:
        stream = stack.enter_context(lanes(driver)).plain().stream
        host = stack.enter_context(mapped(driver, count * size))
        device = stack.enter_context(allocated(driver, count * size))
        table = stack.enter_context(mapped(driver, 8 * (count + 1)))
        ways = {
            "copy engine": _by_engine(backend, stream, device, host),
            "kernels": _by_kernels(backend, stream, device, host, table, count),
        }
        for name, piece in ways.items():
            ms = {
                pieces: middle(
                    times_ms(
                        driver,
                        stream,
                        partial(_each, piece, pieces, count * size // pieces),
                        bench.size(5, 1),
                    )
                )
                for pieces in (1, count)
            }
            apart_ms = (ms[count] - ms[1]) / count
            yield judged(
                f"input pool: a picture's own copy by {name}", f"at most {COPY_START_MS} ms",
                f"{apart_ms:.4f} ms more; published {COPY_START_MS} (E2bird, Figure 7)",
                apart_ms <= COPY_START_MS, ms=ms, pieces=count, published_ms=COPY_START_MS,
                figure="E2bird, Figure 7",
            )  # fmt: skip


Piece = Callable[[int, int], object]  #: by number and bytes


def _each(piece: Piece, pieces: int, nbytes: int) -> None:
    for number in range(pieces):
        piece(number, nbytes)


def _by_engine(backend: CudaBackend, stream: int, device: int, host: MappedBlock) -> Piece:
    def copy(number: int, nbytes: int) -> None:
        at = number * nbytes
        backend.driver.copy(device + at, host.device + at, nbytes, stream)

    return copy


def _by_kernels(
    backend: CudaBackend, stream: int, device: int, host: MappedBlock, table: MappedBlock, most: int
) -> Piece:
    entries = words(table, most + 1)
    entries[most] = 1

    def fetch(number: int, nbytes: int) -> None:
        at = number * nbytes
        entries[number] = host.device + at
        one = table.device + 8 * most
        arguments = (table.device + 8 * number, one, device + at, nbytes, 1)
        backend.driver.launch(
            backend.kernels.gather_rows, (16, 1, 1), (512, 1, 1), stream, arguments
        )

    return fetch


def _computing(bench: Bench, backend: CudaBackend) -> Row:
    """256 rows of AlexNet split over streams: up to how many it takes no longer."""
    driver, inferences = backend.driver, bench.size(_INFERENCES, 16)
    known = network(bench, backend.torch_device, "alexnet", 1)
    ms: dict[int, float] = {}
    for workers in bench.size(_WORKERS, (1, 4)):
        with lanes(driver) as cut, ExitStack() as stack:
            made = [cut.plain() for _ in range(workers)]
            net = known.with_rows(inferences // workers)
            graphs = [
                (stack.enter_context(captured(backend, lane, net.body())), lane.stream)
                for lane in made
            ]
            go = partial(_launched, driver.launch_graph, graphs)
            ms[workers] = middle(taken(driver, [s for _, s in graphs], go, bench.size(10, 1))[0])
    flat = max(workers for workers, took in ms.items() if took <= 1.1 * ms[1])
    return judged(
        f"input pool: {inferences} rows split over streams", f"flat up to {FLAT_UP_TO}",
        f"flat up to {flat}; published {FLAT_UP_TO} (E2bird, Figure 7)", flat >= FLAT_UP_TO,
        ms=ms, figure="E2bird, Figure 7", published=FLAT_UP_TO,
    )  # fmt: skip


def _launched(launch: Callable[[int, int], None], graphs: list[tuple[int, int]]) -> None:
    for graph, stream in graphs:
        launch(graph, stream)
