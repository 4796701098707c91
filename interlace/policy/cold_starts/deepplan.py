"""DeepPlan (Jeong et al., EuroSys 2023), section 4: what stays on the host, what others bring.

Where the paper leaves something open, or its released planner does otherwise, this does as the
released planner:

* Layers without weights count as read from the host, with the time measured so.
* The candidates for a stall are sorted by what reading from the host adds, then by the longest
  copy; a tie keeps the order of execution.
* A layer whose time on the host is beyond its run and one and a half times its copy ends the
  search for that stall. So does one that would add more than the stall (line 9). Layers behind it
  are not looked at. Algorithm 1 as printed has no such bound, and ``as_printed`` has none either.
* The timeline is computed anew only when a stall is gone (line 17). Layers that were changed for a
  stall that remains stay changed, and stalls behind are judged as they were before.
* Partitions of parallel transmission hold the layers that the plan loads; layers that it reads
  from the host are read there in all partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from interlace.core.loading import HostLinks, LoadPlan, LoadStep, WeightPath
from interlace.core.profile import LayerProfile
from interlace.perf.cold_start import added_ms, executes_ms, planned, reads_too_long


def copy(
    layers: Sequence[LayerProfile], links: HostLinks, kept: frozenset[int] = frozenset()
) -> LoadPlan:
    """On demand: copy the model, then run it (DeepPlan section 5.1, Baseline)."""
    return planned(layers, _steps(layers), links.alone, overlapped=False, kept=kept)


def pipeswitch(
    layers: Sequence[LayerProfile], links: HostLinks, kept: frozenset[int] = frozenset()
) -> LoadPlan:
    """Copy layer after layer while those before run (PipeSwitch, as DeepPlan measures it)."""
    return planned(layers, _steps(layers), links.alone, kept=kept)


def left(
    layers: Sequence[LayerProfile], links: HostLinks, kept: frozenset[int] = frozenset()
) -> LoadPlan:
    """Read every layer where it lies: nothing is begun."""
    return planned(layers, _steps(layers, WeightPath.HOST), links.alone, kept=kept)


def _steps(layers: Sequence[LayerProfile], via: WeightPath = WeightPath.COPY) -> list[LoadStep]:
    return [
        LoadStep(layer.name, via if layer.weights_bytes else WeightPath.KEEP) for layer in layers
    ]


#: Kinds of layers that the initial choice leaves on the host, whatever was measured.
_LEFT_ON_HOST: Final = ("batchnorm", "embedding")


def initial_choice(layers: Sequence[LayerProfile]) -> list[bool]:
    """Which layers run on the host's memory, each judged alone (section 4.1, Table 3)."""
    return [
        layer.weights_bytes == 0
        or _left_on_host(layer.kind)
        or layer.run_host_ms < layer.run_ms + layer.copy_ms
        for layer in layers
    ]


def without_stalls(layers: Sequence[LayerProfile], bounded: bool = True) -> list[bool]:
    """Which layers run on the host after Algorithm 1, with the released planner's bound."""
    on_host = [layer.weights_bytes == 0 for layer in layers]
    stalls = _stalls_ms(layers, on_host)
    for index in range(len(layers)):
        if stalls[index] > 0 and _remove(stalls[index], layers, index, on_host, bounded):
            stalls = _stalls_ms(layers, on_host)
    return on_host


def partitions(layers: Sequence[LayerProfile], on_host: Sequence[bool], count: int) -> list[int]:
    """The link that each layer's weights come over (section 4.3.3).

    What is loaded is cut from the front into ``count`` parts of equal bytes; a layer that would
    make a part too large begins the next one, and the last part takes what is left.
    """
    loaded = [index for index, host in enumerate(on_host) if not host]
    block_bytes = sum(layers[index].weights_bytes for index in loaded) // count
    link_of = [0] * len(layers)
    link = filled_bytes = 0
    for index in loaded:
        nbytes = layers[index].weights_bytes
        if filled_bytes + nbytes > block_bytes and link < count - 1:
            # One that is larger than a whole part leaves the parts before the last one empty.
            link = link + 1 if nbytes <= block_bytes else count - 1
            filled_bytes = 0
        filled_bytes += nbytes
        link_of[index] = link
    return link_of


def direct_host_access(
    layers: Sequence[LayerProfile], links: HostLinks, kept: frozenset[int] = frozenset()
) -> LoadPlan:
    """DeepPlan (DHA): one link, some layers read from the host."""
    return _plan(layers, without_stalls(layers), links.alone, kept)


def parallel_transmission(
    layers: Sequence[LayerProfile], links: HostLinks, kept: frozenset[int] = frozenset()
) -> LoadPlan:
    """DeepPlan (PT): every layer copied, over all links."""
    return _plan(layers, [layer.weights_bytes == 0 for layer in layers], links, kept)


def both(
    layers: Sequence[LayerProfile], links: HostLinks, kept: frozenset[int] = frozenset()
) -> LoadPlan:
    """DeepPlan (PT + DHA)."""
    return _plan(layers, without_stalls(layers), links, kept)


def as_printed(
    layers: Sequence[LayerProfile], links: HostLinks, kept: frozenset[int] = frozenset()
) -> LoadPlan:
    """DeepPlan (PT + DHA) by Algorithm 1 as it is printed."""
    return _plan(layers, without_stalls(layers, bounded=False), links, kept)


def _plan(
    layers: Sequence[LayerProfile], on_host: Sequence[bool], links: HostLinks, kept: frozenset[int]
) -> LoadPlan:
    link_of = partitions(layers, on_host, links.peers + 1)
    steps = [
        LoadStep(layer.name, _path(layer, host, link), link)
        for layer, host, link in zip(layers, on_host, link_of, strict=True)
    ]
    return planned(layers, steps, links, kept=kept)


def _path(layer: LayerProfile, host: bool, link: int) -> WeightPath:
    if layer.weights_bytes == 0:
        return WeightPath.KEEP
    if host:
        return WeightPath.HOST
    return WeightPath.PEER if link else WeightPath.COPY


def _left_on_host(kind: str) -> bool:
    plain = kind.replace("_", "").lower()
    return any(word in plain for word in _LEFT_ON_HOST)


def _remove(
    stall_ms: float,
    layers: Sequence[LayerProfile],
    stalled: int,
    on_host: list[bool],
    bounded: bool,
) -> bool:
    """Change layers up to the stalled one, it included, to the host; whether the stall is gone."""
    earlier = sorted(
        range(stalled + 1), key=lambda one: (added_ms(layers[one]), -layers[one].copy_ms)
    )
    for index in earlier:
        layer = layers[index]
        if on_host[index]:
            continue
        if stall_ms < added_ms(layer) or (bounded and reads_too_long(layer)):
            return False
        on_host[index] = True
        stall_ms = stall_ms - layer.copy_ms - added_ms(layer)
        if stall_ms <= 0:
            return True
    return False


def _stalls_ms(layers: Sequence[LayerProfile], on_host: Sequence[bool]) -> list[float]:
    """How long each layer waits for its weights, copies back to back on one link.

    ``ahead_ms`` is how far execution is behind the copies. The order of its sums is part of the
    algorithm: a stall that is rounded to something else than 0 is looked at.
    """
    ahead_ms = 0.0
    stalls: list[float] = []
    for layer, host in zip(layers, on_host, strict=True):
        stall_ms = 0.0
        if host:
            ahead_ms += layer.run_host_ms
        else:
            ahead_ms -= layer.copy_ms
            if ahead_ms < 0:
                stall_ms, ahead_ms = -ahead_ms, 0.0
            ahead_ms += executes_ms(layer, WeightPath.COPY)
        stalls.append(stall_ms)
    return stalls
