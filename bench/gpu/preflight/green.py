"""Tries on green contexts in one process: our kernels, products, convolutions, graphs, memory."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Final

import torch
from torch.nn import functional

from bench.gpu.devices import green_gpu
from bench.gpu.lanes import (
    Lane,
    allocated,
    ask_sms,
    capture,
    captured,
    finish_setup,
    middle,
    sms_of,
    times_ms,
    warm,
)
from bench.gpu.preflight.batch_end import timed
from bench.gpu.preflight.tries import Opened, Try
from bench.gpu.rows import Row, judged, seen
from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.backend.tensors import tensor_at
from interlace.device.cuda.backend.trials import wait_refusal
from interlace.device.cuda.driver.api import CudaError
from interlace.device.cuda.green_contexts.atoms import ATOM_SMS, Atoms, best_split
from interlace.device.cuda.green_contexts.lanes import make_lanes
from interlace.device.cuda.lanes import Lane as ServedLane
from interlace.device.cuda.memory.mapped import MappedMemory
from interlace.device.cuda.memory.registered import RegisteredArenas
from interlace.shm.arena import Arena, ArenaMap

_ARENA_BYTES: Final = 1 << 20
#: Beside the largest value of the right answer: sums in half precision differ in their order.
_CLOSE: Final = {torch.float16: 2e-2, torch.float32: 1e-3}
_RIGHT: Final = "right"
_LAYOUTS: Final = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}
_TYPES: Final = {"fp16": torch.float16, "fp32": torch.float32}
_CHARS: Final = 160
_SPLITS: Final = (
    ("atoms of 8", 8, True), ("clusters ignored", 8, False), ("atoms of 16", 16, True),
)  # fmt: skip
_WAITS: Final = "a graph waits for an event of another stream"
_TOGETHER: Final = "small partitions run at once while all lanes stand"
_MOST_AT_ONCE: Final = 12
_FEW_SMS: Final = "a matrix product on 16 SMs, planned for all or for 16"


def basics() -> tuple[Try, ...]:
    """What no library has a part in, and a product; what comes first others stand on."""
    return (
        Try("groups of the split", _groups),
        Try("our kernel on a green stream", _kernel),
        Try("a graph keeps its SMs", _graph),
        Try(_TOGETHER, _together),
        Try("a registered arena is read by a kernel", _arena),
        Try("the end of a batch is seen", _flag),
        Try(_WAITS, _wait),
        Try("matrix product on a green stream", _product),
        Try(_FEW_SMS, _few_sms),
    )


def convolutions(words: str) -> tuple[Try, ...]:
    """In both precisions and both orders of channels; ``words`` say what is special this time."""
    found: list[Try] = []
    for name, dtype in _TYPES.items():
        for order, layout in _LAYOUTS.items():
            what = f"convolution {name} {order} on a green stream{words}"
            found.append(Try(what, partial(_convolution, what=what, dtype=dtype, layout=layout)))
    return tuple(found)


def _groups(opened: Opened) -> Row:
    """By each way that the driver can be asked; the best is what partitions are made of."""
    driver = opened.backend.driver
    said: dict[str, str] = {}
    for what, sms, clusters in _SPLITS:
        try:
            split = driver.split(sms, clusters)
        except CudaError as error:
            said[what] = f"refused: {error}"
            continue
        rest = split.rest.sms if split.rest else 0
        said[what] = f"{len(split.atoms)} of {split.atoms[0].sms} SMs and {rest} left"
    atoms = Atoms.of(best_split(driver))
    wanted = Atoms(driver.board.sms // ATOM_SMS, ATOM_SMS, driver.board.sms % ATOM_SMS)
    return judged(
        "groups of the split", f"{wanted.count} of {ATOM_SMS} SMs and {wanted.rest_sms} left",
        "; ".join(f"{what}: {words}" for what, words in said.items()), atoms == wanted,
        atoms=[atoms.count, atoms.atom_sms, atoms.rest_sms], ways=said,
    )  # fmt: skip


def _kernel(opened: Opened) -> Row:
    backend, lane = opened.backend, opened.lane
    ran = _ran(backend, lane, partial(ask_sms, backend, lane.stream))
    return _sms("our kernel on a green stream", ran, lane)


def _graph(opened: Opened) -> Row:
    """Captured on a green stream, launched on one of all SMs."""
    backend, lane, whole = opened.backend, opened.lane, opened.cut.plain()

    def launched(address: int, blocks: int) -> None:
        with captured(backend, lane, partial(ask_sms, backend, lane.stream, address, blocks)) as it:
            backend.driver.launch_graph(it, whole.stream)
            backend.driver.synchronize(whole.stream)

    return _sms("a graph keeps its SMs", _ran(backend, whole, launched), lane)


def _together(opened: Opened) -> Row:
    """More streams stand then than there are hardware queues: those that share one would wait."""
    driver, kernels = opened.backend.driver, opened.backend.kernels
    stay_ns, host_ms = opened.bench.size((2_000_000, 0.5), (1000, 100.0))
    with closing(make_lanes(driver)) as ladder, allocated(driver, 64) as turns:
        count = min(_MOST_AT_ONCE, ladder.blocks[0])
        share = green_gpu(opened.bench).shares_pct[0]
        some = [ladder.carve(f"p{at}", share) for at in range(count)]

        def took_ms(lanes: Sequence[ServedLane]) -> float:
            began_s = time.perf_counter()
            for lane in lanes:
                grid = (lane.sms, 1, 1)
                driver.launch(kernels.spin, grid, (128, 1, 1), lane.stream, (stay_ns, turns))
            for lane in lanes:
                driver.synchronize(lane.stream)
            return (time.perf_counter() - began_s) * 1000.0

        took_ms(some)
        one_ms, all_ms = (middle([took_ms(each) for _ in range(5)]) for each in (some[:1], some))
    return judged(
        _TOGETHER, f"{count} take about the {one_ms:.2f} ms of one", f"{all_ms:.2f} ms",
        all_ms < 1.5 * one_ms + host_ms, one_ms=one_ms, all_ms=all_ms,
    )  # fmt: skip


def _ran(backend: CudaBackend, lane: Lane, launch: Callable[[int, int], object]) -> set[int]:
    return sms_of(backend, launch, lane.stream)


def _sms(what: str, ran: set[int], lane: Lane) -> Row:
    found = f"{len(ran)} SMs"
    return judged(what, f"{lane.sms} SMs", found, len(ran) == lane.sms, sms=sorted(ran))


def _arena(opened: Opened) -> Row:
    driver, device = opened.backend.driver, opened.backend.torch_device
    arena, arenas = Arena.create(_ARENA_BYTES), ArenaMap(os.getpid())
    arenas.add(arena)
    registered = RegisteredArenas(driver, arenas, os.getpid())
    try:
        wanted = torch.arange(_ARENA_BYTES // 4, dtype=torch.float32)
        arena.view(arena.alloc(_ARENA_BYTES) or 0, _ARENA_BYTES)[:] = wanted.numpy().tobytes()
        address = registered.register(arena.number).device
        far = tensor_at(address, tuple(wanted.shape), torch.float32, device)
        found = _eager(opened, lambda: far + 1.0)
        same = bool(torch.equal(found.cpu(), wanted + 1.0))
    finally:
        registered.close()
        arenas.close()
        arena.close()
    words = _RIGHT if same else "wrong"
    return judged("a registered arena is read by a kernel", _RIGHT, words, same)


def _flag(opened: Opened) -> Row:
    side, count = opened.bench.size(4096, 32), opened.bench.size(20, 2)
    dtype = opened.bench.size(torch.float16, torch.float32)
    one = torch.randn(side, side, device=opened.backend.torch_device, dtype=dtype)
    body = partial(torch.mm, one, one, out=torch.empty_like(one))
    known = timed(opened.bench, opened.backend, opened.lane, body, count)
    return judged(
        "the end of a batch is seen", f"all {count}",
        f"all, {known.took_ms:.3f} ms after the launch; {known.gpu_ms:.3f} ms of it the GPU's",
        True, **known._asdict(),
    )  # fmt: skip


def _wait(opened: Opened) -> Row:
    """What weights that come and go rest on; without it their models run without graphs."""
    memory = MappedMemory(opened.backend.driver)
    try:
        why = wait_refusal(opened.backend, memory)
    finally:
        memory.close()
    return judged(_WAITS, _RIGHT, why or _RIGHT, not why)


def _product(opened: Opened) -> Row:
    side = opened.bench.size(512, 16)
    one, other = (torch.randn(side, side, dtype=torch.float16) for _ in range(2))
    near = [each.to(opened.backend.torch_device) for each in (one, other)]
    wanted = one.float() @ other.float()
    return both(opened, "matrix product on a green stream", lambda: torch.mm(*near), wanted)


def _few_sms(opened: Opened) -> Row:
    """cuBLAS plans waves for all SMs unless it is told that some are taken (pytorch #143988)."""
    backend, lane = opened.backend, opened.cut.first(16)
    side = opened.bench.size(2048, 16)
    one = torch.randn(side, side, device=backend.torch_device).to(torch.float16)
    out, taken = torch.empty_like(one), {}
    for words, sms in (("all", None), ("16", backend.driver.board.sms - lane.sms)):
        torch._C._set_sm_carveout_experimental(sms)
        try:
            with captured(backend, lane, partial(torch.mm, one, one, out=out)) as graph:
                launch = partial(backend.driver.launch_graph, graph, lane.stream)
                taken[words] = middle(times_ms(backend.driver, lane.stream, launch, 20))
        finally:
            torch._C._set_sm_carveout_experimental(None)
    return seen(_FEW_SMS, ", ".join(f"{how} {ms:.3f} ms" for how, ms in taken.items()), **taken)


def _convolution(opened: Opened, what: str, dtype: torch.dtype, layout: torch.memory_format) -> Row:
    batch, channels, side = opened.bench.size((8, 64, 28), (1, 4, 6))
    rows = torch.randn(batch, channels, side, side, dtype=dtype)
    weights = torch.randn(channels, channels, 3, 3, dtype=dtype) * 0.05
    wanted = functional.conv2d(rows.float(), weights.float(), padding=1)
    near = [
        each.to(opened.backend.torch_device).contiguous(memory_format=layout)
        for each in (rows, weights)
    ]
    return both(opened, what, lambda: functional.conv2d(*near, padding=1), wanted)


def both(opened: Opened, what: str, body: Callable[[], Any], wanted: torch.Tensor) -> Row:
    """A body eager and captured on the lane, against the right answer in FP32.

    It is asked on a plain stream first: ``against`` are the ways that are right there and not here.
    """
    plain = _said(opened._replace(lane=opened.cut.plain()), body, wanted)
    here = _said(opened, body, wanted)
    right = all(words == _RIGHT for words in here.values())
    words = ", ".join(f"{way} {how}" for way, how in here.items())
    against = [way for way in here if here[way] != _RIGHT == plain[way]]
    if not right and not against:
        words += "; on a plain stream as well"
    return judged(
        what, "eager and captured right", words, right, against=against, here=here, plain=plain
    )


def _said(opened: Opened, body: Callable[[], Any], wanted: torch.Tensor) -> dict[str, str]:
    said: dict[str, str] = {}
    for way, ask in (("eager", _eager), ("captured", _captured)):
        try:
            said[way] = _judged(ask(opened, body), wanted)
        except Exception as error:
            said[way] = f"refused: {error}".splitlines()[0][:_CHARS]
    return said


def _eager(opened: Opened, body: Callable[[], Any]) -> torch.Tensor:
    made: list[torch.Tensor] = []

    def keep() -> None:
        made.append(body())

    warm(opened.backend, opened.lane, keep, times=1)
    return made[-1]


def _captured(opened: Opened, body: Callable[[], Any]) -> torch.Tensor:
    """The answer of a replay: the capture itself computes nothing."""
    backend, lane = opened.backend, opened.lane
    warm(backend, lane, body)
    made: list[torch.Tensor] = []

    def keep() -> None:
        made.append(body())

    graph = capture(backend, lane, keep)
    try:
        with torch.inference_mode():  # as it is captured
            made[-1].zero_()
            finish_setup(backend)
            backend.driver.launch_graph(graph.executable, lane.stream)
            backend.driver.synchronize(lane.stream)
            return made[-1].cpu()
    finally:
        graph.close()


def _judged(found: torch.Tensor, wanted: torch.Tensor) -> str:
    off = float((found.cpu().float() - wanted).abs().max() / wanted.abs().max())
    return _RIGHT if off <= _CLOSE[found.dtype] else f"wrong by {off:.3f} of the largest value"
