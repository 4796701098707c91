"""What a CUDA device is made of, and how long its work may take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from interlace.core.hardware import Gpu, Trait
from interlace.core.loading import HostLinks
from interlace.device.cuda.backend.base import LibraryChoice
from interlace.device.cuda.discovery import NvLink
from interlace.device.process.link import WorkTimeouts

#: What makes the ``Backend`` of a process: the driver, torch on that GPU, capture and kernels.
BACKEND: Final = "interlace.device.cuda.backend.base:make_backend"
#: What opens a model on the host.
OPENER: Final = "interlace.formats:open_torch"
#: ``Gpu.ahead_ms``: what the main process, the way to the GPU's and a launch there take, and one
#: tick of the event loop's timers. Longer would only fix batches earlier than need be.
AHEAD_MS: Final = 1.5
#: What every GPU does, however it is shared.
BASE_TRAITS: Final = frozenset({Trait.GATHER_DMA, Trait.SLOW_START})
#: One process for all partitions: inputs staged once, graphs by partition, the next partition
#: carved while the last one serves.
SHARED_PROCESS_TRAITS: Final = BASE_TRAITS | {
    Trait.INPUT_POOL,
    Trait.GRAPHS,
    Trait.OVERLAPPED_REORGANISATION,
}


@dataclass(frozen=True, slots=True)
class CudaSettings:
    """One device.

    ``gpu`` is what it looks like to planners, ``uuid`` which GPU or MIG instance it is. ``lanes``,
    ``backend`` and ``opener`` are ``module:function``, called in the process that holds the GPU
    with the driver, the UUID, and a model. ``inputs`` are the arenas where requests
    will lie, page-locked when the process starts. ``arena_bytes`` is the output memory of one
    process, page-locked too; ``patience_s`` how long a batch waits for it. ``environment`` is what
    CUDA reads when a process starts, given the share of the partition that it is started for.
    ``handle_context`` is where torch's libraries make their handles for work on a green context
    (``backend.library_threads``), of no effect elsewhere. A ``private`` device has a process per
    partition, and no rings of inputs. ``nvlinks`` are the GPUs whose memory it can read fast; one
    that it passes weights on through (``gpu.links``) its process sees, too. ``at_close`` is called
    when all processes have ended.

    Models that no partition has any more stay open while all of them together hold at most
    ``keep_bytes`` of the GPU's memory. So they return with their weights, their variant and their
    graphs on idle lanes. The fastest variants are stored in the folder ``choices``, and are not
    searched for again; if it is empty, they are not stored.
    """

    gpu: Gpu
    uuid: str
    lanes: str
    backend: str = BACKEND
    opener: str = OPENER
    inputs: tuple[int, ...] = ()
    arena_bytes: int = 256 << 20
    patience_s: float = 5.0
    # A process starts torch and CUDA, locks memory and carves the ladder before its first answer.
    limits: WorkTimeouts = field(default_factory=lambda: WorkTimeouts(carve_s=180.0, load_s=900.0))
    environment: Callable[[int], Mapping[str, str]] = lambda share_pct: {}
    handle_context: LibraryChoice = "auto"
    private: bool = False
    keep_bytes: int = 0
    choices: str = ""
    nvlinks: tuple[NvLink, ...] = ()
    at_close: Callable[[], None] = lambda: None


def only_gpu(uuid: str, *peers: str) -> Callable[[int], Mapping[str, str]]:
    """The environment of processes that see one GPU, or one MIG instance; ``peers`` behind it."""
    return lambda share_pct: {"CUDA_VISIBLE_DEVICES": ",".join((uuid, *peers))}


def with_peers(all_settings: Sequence[CudaSettings]) -> list[CudaSettings]:
    """The same, each with another one that weights come through, if one is behind NVLink.

    Of four it is the second next, which hangs on another PCIe switch more often than the next.
    """
    paired: list[CudaSettings] = []
    count = len(all_settings)
    for number, one in enumerate(all_settings):
        rates = {link.uuid: link.bytes_per_ms for link in one.nvlinks}
        order = (all_settings[(number + step) % count] for step in range(count // 2, count))
        peer = next((other for other in order if other.uuid in rates), None)
        if peer is not None:
            links = HostLinks(1, rates[peer.uuid], names=(one.gpu.id, peer.gpu.id))
            seen = only_gpu(one.uuid, peer.uuid)
            paired.append(replace(one, gpu=replace(one.gpu, links=links), environment=seen))
        else:
            paired.append(one)
    return paired


def model_memory_bytes(memory_bytes: int) -> int:
    """What models may hold of a GPU's memory: the rest is for contexts, kernels and workspaces."""
    return memory_bytes // 10 * 9
