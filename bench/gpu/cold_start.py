"""Cold starts: weights that cross the link while the model runs, in every way there is.

Each from nothing on the GPU, from many equal copies on the host in turn, so that no cache has them.
The bound of a way is its bytes at the best rate of a single copy.
"""

import random
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from functools import partial
from typing import Final, NamedTuple

from bench.fidelity.stand import cores
from bench.gpu.bench import Bench
from bench.gpu.cold_link import link, second_gpu, waits
from bench.gpu.cold_models import ColdRun, ColdStand, cold_run, cold_stand
from bench.gpu.lanes import middle, quantile, ratio
from bench.gpu.opened import stand
from bench.gpu.rows import Row, attempt, judged, law, seen
from interlace.core.loading import OWN_LINK, WeightPath
from interlace.core.model import Model
from interlace.policy.cold_starts.deepplan import direct_host_access
from interlace.policy.cold_starts.frontier import frontier
from interlace.profiling.cuda.examine import examine
from interlace.profiling.extra_metrics import GpuTask

_MODELS: Final = ("bert_base",)
_TIMES: Final = 30
_HOSTS: Final = 12
#: The aim of an overlapped cold start, over the bound.
_OVER_BOUND: Final = 1.10
#: More models than memory: so many on so many bytes, asked at this rate for so long.
_INSTANCES, _MEMORY_BYTES, _RATE_RPS, _LONG_S = 400, 16_000_000_000, 100.0, 10.0
_MOST_P99_MS: Final = 12.0


class Way(NamedTuple):
    """How a model comes: which layers are copied, and whether it runs meanwhile."""

    name: str
    copied: Callable[[ColdRun], Collection[int]]
    overlapped: bool = True
    peer: bool = False  #: the second half of the bytes over the link of a second GPU


_WAYS: Final = (
    Way("copied, then run", lambda one: one.all, overlapped=False),
    Way("pipelined", lambda one: one.all),
    Way("pipelined, tables on the host", lambda one: one.all - one.tables),
    Way("nothing copied", lambda one: ()),
    Way("half by a second GPU", lambda one: one.all - one.tables, peer=True),
)


async def rows(bench: Bench) -> AsyncIterator[Row]:
    """The link, waits inside graphs, each model in each way, DeepPlan's plan, more than memory."""
    async with stand(bench, cores, _MODELS) as opened:
        (model,) = opened.models()
        budget, host = bench.size((_MEMORY_BYTES, 4 << 30), (1 << 20, 1 << 20))
        with bench.backend() as backend:
            best = bench.size(50.0, 1.0)
            for row in attempt("the link", lambda: link(bench, backend)):
                best = max(best, row.figures.get("alone_gbs", 0.0))
                yield row
            for row in attempt("waits in graphs", lambda: waits(bench, backend)):
                yield row
            for row in attempt("a second GPU", lambda: second_gpu(bench, backend)):
                yield row
            with cold_stand(bench, backend, budget, host) as there:
                ask = partial(starts, bench, there, model, best)
                for row in attempt(f"cold starts of {model.name}", ask):
                    yield row
                last = partial(more_than_memory, bench, there, model, best)
                for row in attempt("more models than memory", last):
                    yield row


def starts(bench: Bench, there: ColdStand, model: Model, best_gbs: float) -> Iterator[Row]:
    """The model in every way, and as DeepPlan and we plan it from its layers."""
    times = bench.size(_TIMES, 2)
    with cold_run(there, model) as one:
        one.multiply(bench.size(_HOSTS, 2))
        one.cold_ms(one.all)
        one.run()
        answer, warm = one.answer(), [one.warm_ms() for _ in range(times)]
        yield seen(f"{model.name}, warm", f"{middle(warm):.3f} ms", p50_ms=middle(warm))
        for way in _WAYS:
            if one.weights.memory.paths or not way.peer:
                yield from _started(one, way, times, answer, best_gbs)
        yield from _planned(bench, there, one, times, best_gbs)


def _started(one: ColdRun, way: Way, times: int, answer: bytes, best_gbs: float) -> Iterator[Row]:
    copied, links = way.copied(one), one.by_peer if way.peer else {}
    taken: list[float] = []
    wrong = 0
    for at in range(times):
        taken.append(one.cold_ms(copied, way.overlapped, at, links))
        wrong += one.answer() != answer
    p50, p99 = middle(taken), quantile(taken, 0.99)
    over = [at for at in copied or one.all - one.tables if at not in links]
    bound_ms = one.copied_bytes(over) / best_gbs / 1e6
    yield judged(
        f"{one.name}, cold, {way.name}",
        f"at most {_OVER_BOUND:g} of {bound_ms:.2f} ms, what its bytes take",
        f"p50 {p50:.2f} ms ({ratio(p50, bound_ms):.2f} of it), p99 {p99:.2f} ms",
        p50 <= _OVER_BOUND * bound_ms, p50_ms=p50, p99_ms=p99, bound_ms=bound_ms,
        took_ms=taken, nbytes=one.copied_bytes(copied),
    )  # fmt: skip
    yield law(
        f"{one.name}, cold, {way.name}: answers", "as when it is warm, bit by bit",
        f"{wrong} others of {times}", wrong == 0,
    )  # fmt: skip


def _planned(
    bench: Bench, there: ColdStand, one: ColdRun, times: int, best_gbs: float
) -> Iterator[Row]:
    task = GpuTask("", "", "", (one.served.model,), True, (), bench.size(128 << 20, 4096))
    layers = examine(task, one.served.model, there.backend, there.lanes).layers
    for name, plan in (
        ("DeepPlan", direct_host_access(layers, OWN_LINK)),
        ("ours", frontier(layers, OWN_LINK)),
    ):
        left = [step.layer for step in plan.steps if step.via is WeightPath.HOST]
        taken = [one.cold_ms(plan.brought, True, at) for at in range(times)]
        p50 = middle(taken)
        yield seen(
            f"{one.name}, cold, as {name} plans it",
            f"p50 {p50:.2f} ms, predicted {plan.end_ms:.2f}, bound {plan.bound_ms:.2f}; on the "
            f"host: {', '.join(left[:8]) or 'nothing'}{' ...' if len(left) > 8 else ''}",
            p50_ms=p50, predicted_ms=plan.end_ms, bound_ms=plan.bound_ms, on_host=left,
            measured_over_predicted=ratio(p50, plan.end_ms), best_gbs=best_gbs,
        )  # fmt: skip


def more_than_memory(
    bench: Bench, there: ColdStand, model: Model, best_gbs: float
) -> Iterator[Row]:
    """Many models of one make, the least recently used leaving: one lane, first come first served.

    Their weights are fewer distinct copies in turn, which load the link all the same.
    """
    count, rate_rps, long_s = bench.size((_INSTANCES, _RATE_RPS, _LONG_S), (4, 200.0, 0.1))
    draw = random.Random(0)
    with cold_run(there, model) as one:
        one.multiply(bench.size(_HOSTS, 2))
        copied = one.all - one.tables
        held: OrderedDict[int, dict[int, int]] = OrderedDict()
        one.forget()
        taken: list[float] = []
        misses = 0
        began_s = at_s = time.perf_counter()
        while at_s < began_s + long_s:
            at_s += draw.expovariate(rate_rps)
            while time.perf_counter() < at_s:
                pass
            instance = draw.randrange(count)
            one.become(instance, held.pop(instance, {}))
            if not one.weights.held:
                misses += 1
                _make_room(one, copied, held)
                one.weights.fetch(copied)
            one.run()
            held[instance] = one.weights.held
            taken.append((time.perf_counter() - at_s) * 1000.0)
        while held:
            one.become(0, held.popitem()[1])
            one.forget()
        p99 = quantile(taken, 0.99)
        busy = misses * one.copied_bytes(copied) / best_gbs / 1e9 / (time.perf_counter() - began_s)
        yield judged(
            f"{count} of {model.name} in {there.memory.budget_bytes / 1e9:g} GB at {rate_rps:g}/s",
            f"p99 at most {_MOST_P99_MS:g} ms",
            f"p50 {middle(taken):.2f} ms, p99 {p99:.2f} ms, {misses} of {len(taken)} cold, the "
            f"link busy {100 * busy:.0f} %",
            p99 <= _MOST_P99_MS, p50_ms=middle(taken), p99_ms=p99, cold=misses, asked=len(taken),
        )  # fmt: skip


def _make_room(
    one: ColdRun, copied: Collection[int], held: OrderedDict[int, dict[int, int]]
) -> None:
    """Evict whole models, the least recently used first, until one more has a place."""
    memory, there = one.weights.memory, one.weights.held
    while held and memory.used_bytes + one.copied_bytes(copied) > memory.budget_bytes:
        one.weights.held = held.popitem(last=False)[1]
        one.weights.evict(list(one.weights.held))
    one.weights.held = there
