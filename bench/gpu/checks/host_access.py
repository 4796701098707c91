"""Layers whose weights stay in page-locked host memory: right, and how fast."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from bench.gpu.bench import Bench
from bench.gpu.lanes import captured, lanes, middle, times_ms
from bench.gpu.rows import Row, attempt, judged, seen
from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.driver.api import MappedBlock

_BATCHES: Final = (1, 8, 32)


class Layer(NamedTuple):
    """A layer as a function of its weights and a batch, with the shapes of both."""

    name: str
    weights: tuple[int, ...]
    rows: Callable[[int], Any]
    run: Callable[[Any, Any], Any]


def rows(bench: Bench) -> Iterator[Row]:
    """Linear, convolution, embedding: over two kinds of memory, captured, beside a copy first."""
    with bench.backend() as backend, ExitStack() as stack:
        nbytes = bench.size(64 << 20, 1 << 16)
        made = backend.driver.allocate_mapped(nbytes)
        stack.callback(backend.driver.free_mapped, made)
        registered = _registered(backend, nbytes, stack)
        for name, memory in (("allocated", made), ("registered", registered)):
            yield from attempt(name, partial(_side_effects, backend, name, memory))
            for layer in _layers(bench, backend.torch_device):
                yield from attempt(layer.name, partial(_layer, bench, backend, layer, name, memory))


def _registered(backend: CudaBackend, nbytes: int, stack: ExitStack) -> MappedBlock:
    memory = mmap.mmap(-1, nbytes)
    view = np.frombuffer(memory, np.uint8)
    stack.callback(lambda: len(view))  # the view lives as long as the registration
    made = backend.driver.register(int(view.ctypes.data), nbytes)
    stack.callback(backend.driver.unregister, made)
    return made


def tensor_at(address: int, shape: tuple[int, ...], dtype: Any, device: str) -> Any:
    """A tensor over memory that is there; it must be kept for as long as the tensor is used."""
    import torch

    count = int(np.prod(shape))
    nbytes = count * torch.empty(0, dtype=dtype).element_size()
    storage = torch._C._construct_storage_from_data_pointer(address, torch.device(device), nbytes)
    flat = torch.empty(0, dtype=dtype, device=device)
    strides = torch.empty(shape, device="meta").stride()
    return flat.set_(storage, 0, shape, strides)


def _layers(bench: Bench, device: str) -> list[Layer]:
    import torch
    from torch.nn import functional

    dtype = bench.size(torch.float16, torch.float32)
    wide, channels, side, words = bench.size((2048, 256, 14, 16_384), (16, 4, 6, 32))

    def floats(*shape: int) -> Any:
        return torch.randn(*shape, device=device, dtype=dtype)

    return [
        Layer("linear", (wide, wide), lambda n: floats(n, wide), functional.linear),
        Layer(
            "convolution", (channels, channels, 3, 3), lambda n: floats(n, channels, side, side),
            lambda x, w: functional.conv2d(x, w, padding=1),
        ),
        Layer(
            "embedding", (words, 768 if not bench.dry else 8),
            lambda n: torch.randint(0, words, (n, bench.size(128, 4)), device=device),
            functional.embedding,
        ),
    ]  # fmt: skip


def _layer(
    bench: Bench, backend: CudaBackend, layer: Layer, kind: str, memory: MappedBlock
) -> Iterable[Row]:
    import torch

    device = backend.torch_device
    dtype = bench.size(torch.float16, torch.float32)
    near = torch.randn(layer.weights, device=device, dtype=dtype) * 0.02
    far = tensor_at(memory.device, layer.weights, dtype, device)
    far.copy_(near)
    nbytes = near.numel() * near.element_size()
    for batch in bench.size(_BATCHES, (1,)):
        given = layer.rows(batch)
        took = _three_times(bench, backend, partial(layer.run, given), near, far, memory, nbytes)
        same = bool(torch.allclose(layer.run(given, far), layer.run(given, near), atol=1e-2))
        yield judged(
            f"{layer.name} from {kind} host memory, batch {batch}", "right",
            f"{'right' if same else 'wrong'}; {took['host_ms']:.3f} ms, copied first "
            f"{took['copy_ms']:.3f} ms, in place on the GPU {took['near_ms']:.3f} ms",
            same, weights_bytes=nbytes, batch=batch, **took,
        )  # fmt: skip


def _three_times(
    bench: Bench,
    backend: CudaBackend,
    run: Callable[[Any, Any], Any],
    near: Any,
    far: Any,
    memory: MappedBlock,
    nbytes: int,
) -> dict[str, float]:
    driver, count = backend.driver, bench.size(10, 1)
    found: dict[str, float] = {}
    with lanes(driver) as cut:
        lane = cut.first(64)
        for name, weights in (("host_ms", far), ("near_ms", near)):
            with captured(backend, lane, partial(run, weights)) as graph:
                launch = partial(driver.launch_graph, graph, lane.stream)
                found[name] = middle(times_ms(driver, lane.stream, launch, count))
                if weights is near:
                    copy = partial(driver.copy, near.data_ptr(), memory.device, nbytes, lane.stream)
                    both = partial(_in_turn, copy, launch)
                    found["copy_ms"] = middle(times_ms(driver, lane.stream, both, count))
    return found


def _in_turn(first: Callable[[], object], then: Callable[[], object]) -> None:
    first()
    then()


def _side_effects(backend: CudaBackend, kind: str, memory: MappedBlock) -> Iterable[Row]:
    import torch

    device = backend.torch_device
    far = tensor_at(memory.device, (16, 16), torch.float32, device)
    yield seen("where such a tensor says it is", str(far.device))
    for name, made in (
        ("contiguous()", far.contiguous()),
        (f"to({device})", far.to(device)),
        ("view", far.view(-1)),
    ):
        stays = made.data_ptr() == memory.device
        words = "stays where it is" if stays else "was copied"
        yield judged(f"{name} of {kind} memory", "stays where it is", words, stays)
    if device != "cpu":
        far.record_stream(torch.cuda.current_stream())
        yield seen("record_stream", "passes")
