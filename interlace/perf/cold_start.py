"""The time of a cold start: copies in order on each link, execution as weights arrive.

DeepPlan (Jeong et al., EuroSys 2023), Figures 1, 7 to 9: a layer runs when the one before it has
run and its weights are there. Reading weights from the host is taken to disturb no copy.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Final, NamedTuple

from interlace.core.loading import (
    OVER_LINKS,
    HostLinks,
    HostTier,
    LoadPlan,
    LoadStep,
    WeightPath,
    link_of,
)
from interlace.core.model import ServiceTerms
from interlace.core.profile import LayerProfile, Profile

#: What reading from the host may cost at most, in times of the copy that it saves.
_MOST_COPIES: Final = 1.5


class LayerTimes(NamedTuple):
    """When a layer's weights are there, and when it begins and ends, in ms."""

    arrives_ms: float
    begins_ms: float
    ends_ms: float


def layer_times(
    layers: Sequence[LayerProfile],
    steps: Sequence[LoadStep],
    links: HostLinks,
    overlapped: bool = True,
) -> list[LayerTimes]:
    """Of each layer, if its weights take these paths."""
    if links.takes_cores:
        return _one_after_the_other(layers, steps)
    arrivals = _arrivals_ms(layers, steps, links)
    ready_ms = _begun_ms(layers, steps) if links.carries_reads else 0.0
    if not overlapped:
        for layer, step, arrives_ms in zip(layers, steps, arrivals, strict=True):
            if step.via in OVER_LINKS:
                ready_ms = max(ready_ms, arrives_ms) + layer.core_ms
        layers = [replace(layer, core_ms=0.0) for layer in layers]
    times: list[LayerTimes] = []
    for layer, step, arrives_ms in zip(layers, steps, arrivals, strict=True):
        begins_ms = max(ready_ms, arrives_ms)
        ready_ms = begins_ms + executes_ms(layer, step.via)
        times.append(LayerTimes(arrives_ms, begins_ms, ready_ms))
    return times


def _one_after_the_other(
    layers: Sequence[LayerProfile], steps: Sequence[LoadStep]
) -> list[LayerTimes]:
    ready_ms = _begun_ms(layers, steps)
    times: list[LayerTimes] = []
    for layer, step in zip(layers, steps, strict=True):
        begins_ms = ready_ms + (layer.copy_ms if step.via is WeightPath.COPY else 0.0)
        ready_ms = begins_ms + executes_ms(layer, step.via)
        times.append(LayerTimes(begins_ms, begins_ms, ready_ms))
    return times


def _begun_ms(layers: Sequence[LayerProfile], steps: Sequence[LoadStep]) -> float:
    return begin_ms(layers) if any(step.via is WeightPath.COPY for step in steps) else 0.0


def begin_ms(layers: Sequence[LayerProfile]) -> float:
    """What beginning a load costs cores, however little it copies: what is before the weights."""
    return layers[0].copy_ms if layers and not layers[0].weights_bytes else 0.0


def executes_ms(layer: LayerProfile, via: WeightPath) -> float:
    """How long a layer runs with its weights there, copied meanwhile, or on the host."""
    if via is WeightPath.HOST:
        return layer.run_host_ms
    return layer.run_ms if via is WeightPath.KEEP else layer.run_ms + layer.core_ms


def read_ms(layer: LayerProfile) -> float:
    """What a layer's execution takes longer with its weights on the host."""
    return max(0.0, layer.run_host_ms - layer.run_ms)


def added_ms(layer: LayerProfile) -> float:
    """The same beside an execution while its weights are copied."""
    return layer.run_host_ms - executes_ms(layer, WeightPath.COPY)


def shortest_ms(layer: LayerProfile) -> float:
    """How long a layer runs at least whose weights are not there."""
    return min(layer.run_host_ms, executes_ms(layer, WeightPath.COPY))


def reads_too_long(layer: LayerProfile) -> bool:
    """Whether it is not to be read from the host, for what that takes more than it saves.

    The bound is DeepPlan's released planner's: one and a half times the copy.
    """
    return layer.run_host_ms > executes_ms(layer, WeightPath.COPY) + _MOST_COPIES * layer.copy_ms


def capped_residency(
    layers: Sequence[LayerProfile], links: HostLinks, most_bytes: int
) -> tuple[LayerProfile, ...]:
    """The layers under a residency cap: at most ``most_bytes`` of their weights are ever loaded.

    Layers that gain most a byte by being resident are loaded. The others become layers without
    weights, and run as they do on the host. Cores can always read weights in a file; elsewhere
    layers that are slow to read from the host (``reads_too_long``) must be loaded.

    Raises:
        ValueError: layers that must be loaded exceed the cap; the text has both figures.
    """

    def needed(layer: LayerProfile) -> bool:
        return not links.takes_cores and layer.weights_bytes > 0 and reads_too_long(layer)

    needed_bytes = sum(layer.weights_bytes for layer in layers if needed(layer))
    if needed_bytes > most_bytes:
        raise ValueError(
            f"{most_bytes / 1e6:g} MB, and {needed_bytes / 1e6:.1f} MB of its weights must be in "
            f"memory for it to run"
        )
    by_gain = sorted(
        (index for index, layer in enumerate(layers) if layer.weights_bytes),
        key=lambda index: (
            not needed(layers[index]),
            (layers[index].run_ms - layers[index].run_host_ms) / layers[index].weights_bytes,
        ),
    )
    brought: set[int] = set()
    left_bytes = most_bytes
    for index in by_gain:
        if layers[index].weights_bytes <= left_bytes:
            brought.add(index)
            left_bytes -= layers[index].weights_bytes
    return tuple(
        layer
        if index in brought or not layer.weights_bytes
        else replace(
            layer, weights_bytes=0, copy_ms=0.0, copy_disk_ms=0.0, run_ms=layer.run_host_ms
        )
        for index, layer in enumerate(layers)
    )


def as_allowed(profile: Profile, terms: ServiceTerms) -> Profile:
    """The profile of a model that serves by these terms (``most_weights_bytes``).

    Raises:
        ValueError: as ``capped_residency``.
    """
    if terms.most_weights_bytes is None:
        return profile
    links = link_of(profile.gpu_kind)
    layers = capped_residency(profile.layers, links, terms.most_weights_bytes)
    return replace(profile, layers=layers)


def _arrivals_ms(
    layers: Sequence[LayerProfile], steps: Sequence[LoadStep], links: HostLinks
) -> list[float]:
    link_ms = [0.0] * (links.peers + 1)
    passed_ms = [0.0] * (links.peers + 1)
    arrivals: list[float] = []
    for layer, step in zip(layers, steps, strict=True):
        arrives_ms = 0.0
        if step.via in OVER_LINKS:
            link_ms[step.link] += layer.copy_ms
            arrives_ms = link_ms[step.link]
        if step.via is WeightPath.PEER:
            arrives_ms = max(arrives_ms, passed_ms[step.link])
            arrives_ms += layer.weights_bytes / links.peer_bytes_per_ms
            passed_ms[step.link] = arrives_ms
        if step.via is WeightPath.HOST and links.carries_reads:
            link_ms[0] += read_ms(layer)
        arrivals.append(arrives_ms)
    return arrivals


def planned(
    layers: Sequence[LayerProfile],
    steps: Sequence[LoadStep],
    links: HostLinks,
    overlapped: bool = True,
    kept: frozenset[int] = frozenset(),
) -> LoadPlan:
    """The plan of these steps, with its predicted end and the bound; layers ``kept`` are there."""
    steps = [
        LoadStep(step.layer, WeightPath.KEEP) if index in kept else step
        for index, step in enumerate(steps)
    ]
    times = layer_times(layers, steps, links, overlapped)
    kept = frozenset(index for index, step in enumerate(steps) if step.via is WeightPath.KEEP)
    end_ms = times[-1].ends_ms if times else 0.0
    return LoadPlan(tuple(steps), overlapped, end_ms, bound_ms(layers, links, kept))


def bound_ms(
    layers: Sequence[LayerProfile], links: HostLinks, kept: frozenset[int] = frozenset()
) -> float:
    """What no choice of paths ends before: bytes that must cross, and what cannot overlap.

    ``kept`` are layers whose weights are there. Of each other layer either the copy takes a link,
    or reading from the host makes its execution longer. Executions follow each other, and what
    runs from the last layer with weights on cannot overlap with copies. Were layers divisible, the
    best choice would leave those on the host first that add the least for the copy they save, until
    links and executions end together: the fractional knapsack.
    """
    if links.takes_cores:
        return sum(
            one.run_ms
            if index in kept or not one.weights_bytes
            else min(one.copy_ms + one.run_ms, one.run_host_ms)
            for index, one in enumerate(layers)
        )
    least_ms = [
        layer.run_ms if index in kept else shortest_ms(layer) for index, layer in enumerate(layers)
    ]
    by_layer = {
        index: (added_ms(layer), layer.copy_ms / (links.peers + 1))
        for index, layer in enumerate(layers)
        if index not in kept and layer.weights_bytes and added_ms(layer) > 0
    }
    run_ms, crossing = sum(least_ms), by_layer.values()
    if not crossing:
        return run_ms
    links_ms = sum(copy_ms for _, copy_ms in crossing) + sum(least_ms[max(by_layer) :])
    # What the disk had read already when it was to be copied takes no link.
    for longer_ms, copy_ms in sorted(crossing, key=lambda one: one[0] / one[1] if one[1] else inf):
        if links_ms <= run_ms:
            break
        part = min(1.0, (links_ms - run_ms) / (longer_ms + copy_ms))
        run_ms += part * longer_ms
        links_ms -= part * copy_ms
    # Of each layer the copy or the read is on a link that carries both.
    carried_ms = sum(map(min, crossing)) if links.carries_reads else 0.0
    return max(run_ms, links_ms, carried_ms)


class HostMemory:
    """Whole models, the longest unused leaving for the next, as a page cache has them.

    What is larger than all of it is read each time. Layers that an accelerator reads from the host
    are taken to stay where they are.
    """

    def __init__(self, tier: HostTier) -> None:
        self.tier = tier
        self._held: OrderedDict[str, int] = OrderedDict()
        self._held_bytes = 0

    def holds(self, model: str) -> bool:
        """Whether its weights need not be read from the disk."""
        return model in self._held

    def use(self, model: str, nbytes: int) -> bool:
        """Its weights, so many in all, are used now; true if they were there."""
        if model in self._held:
            self._held.move_to_end(model)
            return True
        if nbytes <= self.tier.memory_bytes:
            while self._held_bytes + nbytes > self.tier.memory_bytes:
                self._held_bytes -= self._held.popitem(last=False)[1]
            self._held[model] = nbytes
            self._held_bytes += nbytes
        return False


def on_disk(
    layers: Sequence[LayerProfile], takes_cores: bool, host: HostTier | None = None
) -> tuple[LayerProfile, ...]:
    """Copies and reads as long as they were measured from disk, or as the ``host``'s disk takes.

    Empty if neither is known. With ``takes_cores`` the cores' copy is a part of its own
    (``core_ms``), and begins when the disk has read the layer. For a disk known by its rate alone,
    all of a layer is read, and the copy runs beside the read.
    """
    if host is not None:
        return tuple(_at_rate(layer, host.read_ms(layer.weights_bytes)) for layer in layers)
    if not any(layer.copy_disk_ms for layer in layers):
        return ()
    found = [
        replace(
            layer,
            copy_ms=max(layer.copy_ms, layer.copy_disk_ms),
            run_host_ms=max(layer.run_host_ms, layer.run_disk_ms),
        )
        for layer in layers
    ]
    if not takes_cores:
        return tuple(found)
    copies_ms = [layer.copy_ms if layer.weights_bytes else 0.0 for layer in layers]
    return tuple(
        # It was measured by copies, each after the other, while the disk read on.
        replace(one, copy_ms=one.copy_ms - own_ms + before_ms, core_ms=own_ms)
        for one, own_ms, before_ms in zip(found, copies_ms, [0.0, *copies_ms], strict=False)
    )


def _at_rate(layer: LayerProfile, read_ms: float) -> LayerProfile:
    run_host_ms = max(layer.run_ms, layer.run_host_ms) + read_ms
    return replace(layer, copy_ms=max(layer.copy_ms, read_ms), run_host_ms=run_host_ms)
