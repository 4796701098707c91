"""The paper's server on four V100: a worker a GPU, one request at a time, LRU, links as queues.

As the released server does it: an instance belongs to the GPU of its number modulo four; before a
cold one is loaded, the least recently used leave until less than the card's memory less 5.5 GiB is
in use. A second partition comes over the GPU two further on, which hangs on the other switch. A
switch's link carries one load after the other, in the order in which their requests begin.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from bench.papers.deepplan.links import SWITCH_OF
from bench.papers.deepplan.v100 import V100, layers, planned, waiting
from interlace.core.loading import HostLinks, WeightPath
from interlace.perf.cold_start import executes_ms

GPUS: Final = len(SWITCH_OF)
#: What the driver tells of a card of 16 GB, less what the server leaves free.
CAPACITY_BYTES: Final = int((15.78 - 5.5) * (1 << 30))


class _Piece(NamedTuple):
    """A layer: over which link (own 0, other 1, none -1) and how long, passing on, execution."""

    link: int
    copy_ms: float
    pass_ms: float
    run_ms: float


@dataclass(frozen=True, slots=True)
class ModelWay:
    """A model by one answer to cold starts: its layers' pieces, warm time, bytes on the GPU."""

    pieces: tuple[_Piece, ...]
    warm_ms: float
    nbytes: int


def way_of(model: str, name: str, rows: float = 1) -> ModelWay:
    """The model as the answer of that name brings it; PT takes two links, the others one."""
    found = layers(model, rows)
    links = V100.two_links if name in ("deepplan-pt", "deepplan", "interlace") else HostLinks()
    steps = planned(name, found, links)
    kinds = {WeightPath.COPY: 0, WeightPath.PEER: 1}
    pieces = []
    for one, step in zip(waiting(found, steps), steps, strict=True):
        link = kinds.get(step.via, -1)
        passing_ms = one.weights_bytes / V100.nvlink_bytes_per_ms if link == 1 else 0.0
        copy_ms = one.copy_ms if link >= 0 else 0.0
        pieces.append(_Piece(link, copy_ms, passing_ms, executes_ms(one, step.via)))
    pairs = list(zip(found, steps, strict=True))
    warm_ms = sum(executes_ms(one, step.via) for one, step in pairs)
    return ModelWay(
        tuple(pieces), warm_ms, sum(one.weights_bytes for one, step in pairs if step.via in kinds)
    )


class Request(NamedTuple):
    """One request of an instance."""

    at_ms: float
    instance: int


class Served(NamedTuple):
    """What became of one."""

    request: Request
    took_ms: float
    cold: bool


@dataclass(slots=True)
class _Worker:
    """One GPU: what waits, what is resident, when it is free."""

    waiting: list[Request] = field(default_factory=list)
    resident: OrderedDict[int, int] = field(default_factory=OrderedDict)
    used_bytes: int = 0
    free_ms: float = 0.0
    served: int = 0

    @property
    def begins_ms(self) -> float:
        return max(self.free_ms, self.waiting[self.served].at_ms)


def serve(requests: Sequence[Request], ways: Mapping[int, ModelWay]) -> list[Served]:
    """Every request, in the order in which they begin; ``ways`` by instance."""
    workers = [_Worker() for _ in range(GPUS)]
    for request in requests:
        workers[request.instance % GPUS].waiting.append(request)
    switch_free_ms = [0.0] * (max(SWITCH_OF) + 1)
    found: list[Served] = []
    while left := [gpu for gpu, one in enumerate(workers) if one.served < len(one.waiting)]:
        gpu = min(left, key=lambda one: workers[one].begins_ms)
        worker = workers[gpu]
        request, begins_ms = worker.waiting[worker.served], worker.begins_ms
        worker.served += 1
        way = ways[request.instance]
        cold = request.instance not in worker.resident
        if cold:
            while worker.used_bytes >= CAPACITY_BYTES:
                worker.used_bytes -= worker.resident.popitem(last=False)[1]
            worker.used_bytes += way.nbytes
            worker.resident[request.instance] = way.nbytes
            worker.free_ms = _cold_end_ms(way, gpu, begins_ms, switch_free_ms)
        else:
            worker.free_ms = begins_ms + way.warm_ms
        worker.resident.move_to_end(request.instance)
        found.append(Served(request, worker.free_ms - request.at_ms, cold))
    return found


def _cold_end_ms(way: ModelWay, gpu: int, begins_ms: float, switch_free_ms: list[float]) -> float:
    switches = SWITCH_OF[gpu], SWITCH_OF[(gpu + 2) % GPUS]
    free_ms = [max(begins_ms, switch_free_ms[one]) for one in switches]
    passed_ms = end_ms = begins_ms
    for link, copy_ms, pass_ms, run_ms in way.pieces:
        there_ms = begins_ms
        if link >= 0:
            free_ms[link] += copy_ms
            there_ms = free_ms[link]
        if link == 1:
            there_ms = passed_ms = max(passed_ms, there_ms) + pass_ms
        end_ms = max(end_ms, there_ms) + run_ms
    for link in {piece.link for piece in way.pieces if piece.link >= 0}:
        switch_free_ms[switches[link]] = free_ms[link]
    return end_ms
