"""Whether cuBLAS and cuDNN heed the SMs of a partition: time by SMs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from bench.gpu.bench import Bench
from bench.gpu.checks import layers
from bench.gpu.lanes import Lane, captured, lanes, middle, ratio, times_ms
from bench.gpu.rows import Row, attempt, judged, seen
from interlace.device.cuda.backend.base import CudaBackend

_SMS: Final = (16, 32, 48, 64, 80, 96, 112, 128)


def rows(bench: Bench) -> Iterator[Row]:
    """Time on s SMs over time on all, against all over s: 1 is a library that heeds them."""
    with bench.backend() as backend, lanes(backend.driver) as cut:
        sizes = [sms for sms in bench.size(_SMS, (16,)) if sms < backend.driver.board.sms]
        strips = {sms: cut.first(sms) for sms in sizes}
        whole = cut.plain()
        for name, make in (
            ("matrix product", layers.gemm),
            ("linear layer", layers.linear),  # by cuBLASLt, which plans by itself
            ("convolution", layers.convolution),
        ):
            body = make(bench, backend.torch_device)
            yield from attempt(name, partial(_layer, bench, backend, name, body, strips, whole))


def _layer(
    bench: Bench,
    backend: CudaBackend,
    name: str,
    body: layers.Body,
    strips: dict[int, Lane],
    whole: Lane,
) -> Iterable[Row]:
    whole_ms = _taken_ms(bench, backend, body, whole)
    yield seen(f"{name} on all {whole.sms} SMs", f"{whole_ms:.3f} ms", ms=whole_ms, sms=whole.sms)
    for lane in strips.values():
        plain_ms = _taken_ms(bench, backend, body, lane)
        fair_ms = whole_ms * whole.sms / lane.sms
        fair = ratio(fair_ms, plain_ms)
        yield judged(
            f"{name} on {lane.sms} SMs", f"{fair_ms:.3f} ms at most",
            f"{plain_ms:.3f} ms ({fair:.2f} of fair)", fair > 0.85, sms=lane.sms,
            plain_ms=plain_ms,
        )  # fmt: skip


def _taken_ms(bench: Bench, backend: CudaBackend, body: layers.Body, lane: Lane) -> float:
    with captured(backend, lane, body) as graph:
        launch = partial(backend.driver.launch_graph, graph, lane.stream)
        return middle(times_ms(backend.driver, lane.stream, launch, bench.size(15, 2)))
