"""A model's layers as planners see them where its weights are on the host's disk only.

From there a copy hides behind execution but for what it takes of the cores, and what is left in the
file is read by the same disk when it is executed: so another plan is the best one than from the
host's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from interlace.core.loading import HostTier
from interlace.core.profile import LayerProfile


def on_disk(
    layers: Sequence[LayerProfile], takes_cores: bool, host: HostTier | None = None
) -> tuple[LayerProfile, ...]:
    """Copies and reads as long as they were measured from disk, or as the ``host``'s disk takes.

    Empty if neither is known. Where copies ``takes_cores``, that is a part of its own
    (``core_ms``), and the disk has brought a layer before cores copy it. A disk that is told by its
    rate alone reads all of a layer, and a copy follows it as it reads.
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
