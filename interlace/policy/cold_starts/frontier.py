"""Ours: each layer kept, copied, read from the host or brought by a peer; dynamic programming.

After each layer, only the times at which execution and each link are free matter. Choices that
leave all of these later than others do are dropped. So are choices that could not end before the
best of DeepPlan's plans even if the rest took its shortest execution alone. The choices left are
the Pareto front. With up to eight layers and one peer all of it is kept, and the plan is optimal.
With more it is thinned evenly. Then the answer is one of DeepPlan's plans, of Algorithm 1 as
printed or of the released planner, where none found ends sooner. Of plans that end at the same
time, the one that moves the fewest bytes is taken, because links are shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from operator import le
from typing import Final, NamedTuple

from interlace.core.loading import HostLinks, LoadPlan, LoadStep, WeightPath
from interlace.core.profile import LayerProfile
from interlace.perf.cold_start import (
    begin_ms,
    executes_ms,
    planned,
    read_ms,
    reads_too_long,
    shortest_ms,
)
from interlace.policy.cold_starts import deepplan
from interlace.policy.cold_starts.deepplan import left, pipeswitch

#: States that are kept after a layer: so many over all layers, but never fewer than the least.
_STATES: Final = 1 << 11
_LEAST_WIDTH: Final = 8
#: So few layers have at most that many states: all three ways of each, with one peer.
_FEW: Final = 8
_ALL: Final = 3**_FEW
#: Two ends within this are one: sums of the same times in another order.
_SAME_MS: Final = 1e-9


class _PartialPlan(NamedTuple):
    """After some layers: when execution ends, when links are free, and how it came to that.

    ``free_ms`` are the links to the host, then what each peer passes on.
    """

    end_ms: float
    free_ms: tuple[float, ...]
    moved_bytes: int
    last: LoadStep | None
    before: _PartialPlan | None


def frontier(
    layers: Sequence[LayerProfile], links: HostLinks, kept: frozenset[int] = frozenset()
) -> LoadPlan:
    """The plan that ends first, where the weights of the layers ``kept`` are there."""
    seeds = [
        one(layers, links, kept)
        for one in (
            pipeswitch,
            deepplan.direct_host_access,
            deepplan.parallel_transmission,
            deepplan.both,
            deepplan.as_printed,
            *([left] if links.takes_cores or links.carries_reads else []),
        )
    ]
    best = min(seeds, key=lambda plan: (plan.end_ms, moved_bytes(layers, plan)))
    found = _search(layers, links, kept, best.end_ms)
    if found is None:
        return best
    own = planned(layers, found, links)
    if own.end_ms > best.end_ms + _SAME_MS:
        return best
    fewer = moved_bytes(layers, own) <= moved_bytes(layers, best)
    return own if own.end_ms < best.end_ms - _SAME_MS or fewer else best


def lasting(
    layers: Sequence[LayerProfile], links: HostLinks, kept: frozenset[int] = frozenset()
) -> LoadPlan:
    """The plan that ends first of those that do not slow later runs.

    While execution waits for copies, ``frontier`` may read layers from the host that take several
    times as long that way. Its plan ends a little sooner, but it and all later runs hold their
    partition for longer. Here a layer is not read from the host if that takes over one and a half
    times its copy longer, the bound of DeepPlan's released planner. DeepPlan's Algorithm 1 as
    printed has no such bound; its plan is taken where it ends sooner. So this plan ends no later
    than either of DeepPlan's. Cores pay for such reads once, since what a run has read in a file
    stays mapped. To copy only for later runs would delay the load, so there ``frontier`` decides.
    """
    if links.takes_cores:
        return frontier(layers, links, kept)
    bounded = [replace(one, run_host_ms=inf) if reads_too_long(one) else one for one in layers]
    found = planned(layers, frontier(bounded, links, kept).steps, links)
    others = [deepplan.as_printed, *([left] if links.carries_reads else [])]
    sooner = (one(layers, links, kept) for one in others)
    return min([found, *sooner], key=lambda plan: plan.end_ms)


def moved_bytes(layers: Sequence[LayerProfile], plan: LoadPlan) -> int:
    """Bytes that a plan copies over links from the host."""
    return sum(layers[index].weights_bytes for index in plan.brought)


def _search(
    layers: Sequence[LayerProfile], links: HostLinks, kept: frozenset[int], beat_ms: float
) -> list[LoadStep] | None:
    """The steps of the best plan found that ends no later than ``beat_ms``, if there is one."""
    rest_ms = _shortest_rest_ms(layers, kept)
    width = _ALL if len(layers) <= _FEW else max(_LEAST_WIDTH, _STATES // (len(layers) + 1))
    begins_ms = begin_ms(layers) if links.carries_reads else 0.0
    states = [_PartialPlan(begins_ms, (0.0,) * (1 + 2 * links.peers), 0, None, None)]
    for index, layer in enumerate(layers):
        last_ms = beat_ms + _SAME_MS - rest_ms[index + 1]
        steps = _steps(layer, links, index in kept)
        grown = [_after(state, layer, step, links) for step in steps for state in states]
        states = [state for state in grown if state.end_ms <= last_ms]
        if len(steps) > 1:
            states = _thinned(_undominated(states), width)
    if not states:
        return None
    first_ms = min(state.end_ms for state in states)
    ends = [state for state in states if state.end_ms <= first_ms + _SAME_MS]
    return _way(min(ends, key=lambda state: state.moved_bytes))


def _way(state: _PartialPlan | None) -> list[LoadStep]:
    steps: list[LoadStep] = []
    while state is not None and state.last is not None:
        steps.append(state.last)
        state = state.before
    return steps[::-1]


def _shortest_rest_ms(layers: Sequence[LayerProfile], kept: frozenset[int]) -> list[float]:
    rest_ms = [0.0]
    for index in range(len(layers) - 1, -1, -1):
        layer = layers[index]
        alone = index in kept or layer.weights_bytes == 0
        run_ms = layer.run_ms if alone else shortest_ms(layer)
        rest_ms.append(rest_ms[-1] + run_ms)
    return rest_ms[::-1]


def _steps(layer: LayerProfile, links: HostLinks, kept: bool) -> tuple[LoadStep, ...]:
    if kept or layer.weights_bytes == 0:
        return (LoadStep(layer.name, WeightPath.KEEP),)
    host = LoadStep(layer.name, WeightPath.HOST)
    if layer.run_host_ms <= layer.run_ms:
        return (host,)  # it costs nothing at all
    numbers = range(1, links.peers + 1)
    peers = (LoadStep(layer.name, WeightPath.PEER, number) for number in numbers)
    return (host, LoadStep(layer.name, WeightPath.COPY), *peers)


def _after(
    state: _PartialPlan, layer: LayerProfile, step: LoadStep, links: HostLinks
) -> _PartialPlan:
    end_ms, free_ms, moved, _, _ = state
    if step.via is WeightPath.HOST:
        if links.carries_reads:
            free_ms = (free_ms[0] + read_ms(layer), *free_ms[1:])
        return _PartialPlan(end_ms + layer.run_host_ms, free_ms, moved, step, state)
    if links.takes_cores and step.via is WeightPath.COPY:
        end_ms, moved = end_ms + layer.copy_ms, moved + layer.weights_bytes
    elif step.via is not WeightPath.KEEP:
        times = list(free_ms)
        times[step.link] = arrives_ms = times[step.link] + layer.copy_ms
        if step.link:
            passing = step.link + links.peers
            arrives_ms = max(arrives_ms, times[passing])
            arrives_ms += layer.weights_bytes / links.peer_bytes_per_ms
            times[passing] = arrives_ms
        end_ms, free_ms = max(end_ms, arrives_ms), tuple(times)
        moved += layer.weights_bytes
    return _PartialPlan(end_ms + executes_ms(layer, step.via), free_ms, moved, step, state)


def _undominated(states: list[_PartialPlan]) -> list[_PartialPlan]:
    """Those that no other is at most as late as, in execution and on every link."""
    left: list[_PartialPlan] = []
    for state in sorted(states, key=lambda one: one[:3]):
        if len(state.free_ms) == 1:  # of those that end earlier the last one frees its link first
            worse = bool(left) and left[-1].free_ms <= state.free_ms
        else:
            worse = any(all(map(le, other.free_ms, state.free_ms)) for other in left)
        if not worse:
            left.append(state)
    return left


def _thinned(states: list[_PartialPlan], width: int) -> list[_PartialPlan]:
    """At most that many, evenly, with the first and the last."""
    if len(states) <= width:
        return states
    return [states[index * (len(states) - 1) // (width - 1)] for index in range(width)]
