"""The CPU device's own counterparts: a worker replaced under traffic, weights shared by workers."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from bench.fidelity.changing_share import ChangingShare, engine_of
from bench.fidelity.network import network, write_network
from bench.fidelity.stand import Stand, cores
from bench.harness import processes
from bench.hosting_gaps import Gaps
from interlace.core.hardware import Trait
from interlace.core.messages import CreatePartition, Load, ReleasePartition
from interlace.core.request import Batch

_EVERY_S: Final = 0.004
_PATIENT_MS: Final = 60_000.0
_LIMIT_S: Final = 60.0


class Changed(NamedTuple):
    """A share that changed under traffic. Times in ms: the longest without a reply around the
    change and before it, the longest in which no worker held the model, from plan to standing."""

    down_ms: float
    usual_ms: float
    hostless_ms: float
    change_ms: float
    sent: int
    lost: int


@contextmanager
def _repository(width: int, layers: int) -> Iterator[Path]:
    with TemporaryDirectory(prefix="interlace-primitives-") as folder:
        root = Path(folder)
        write_network(root, network(width, layers), "slo_ms = 1000\nmax_batch = 4\n")
        yield root


def changed(overlapped: bool, seconds: float = 1.0) -> Changed:
    """From one core to two while requests flow; the old worker stays until the new one stands,
    or makes room for it first."""
    with _repository(512, 2) as root:
        return asyncio.run(_changed(root, overlapped, seconds))


async def _changed(root: Path, overlapped: bool, seconds: float) -> Changed:
    async with Stand(root, ["network"]) as stand:
        gpu = stand.device.gpu
        if not overlapped:
            gpu = replace(gpu, traits=gpu.traits - {Trait.OVERLAPPED_REORGANISATION})
        gaps = Gaps(engine_of(gpu))
        run = ChangingShare(stand, gpu, [gaps])
        await run.go_to(50)
        traffic = asyncio.create_task(_keep_sending(run))
        await asyncio.sleep(seconds)
        began_ms, ended_ms = await run.go_to(100)
        await asyncio.sleep(seconds)
        await run.end(traffic)
    between = [(b - a, b) for (a, _), (b, _) in pairwise(run.replies)]
    return Changed(
        max(gap for gap, at_ms in between if at_ms >= began_ms),
        max(gap for gap, at_ms in between if at_ms < began_ms),
        max((gap.until_ms - gap.from_ms for gap in gaps.gaps), default=0.0),
        ended_ms - began_ms,
        run.sent,
        run.lost,
    )


async def _keep_sending(run: ChangingShare) -> None:
    while True:
        run.send()
        await asyncio.sleep(_EVERY_S)


def workers_bytes(shared: bool, most: int, width: int = 2048, layers: int = 8) -> list[int]:
    """Memory in bytes of 1 to ``most`` workers that hold the same model and have run it.

    The sum of proportional set sizes: a page that n processes share counts a n-th in each.
    """
    with _repository(width, layers) as root:
        return asyncio.run(_workers_bytes(root, shared, most))


async def _workers_bytes(root: Path, shared: bool, most: int) -> list[int]:
    found: list[int] = []
    async with Stand(root, ["network"], partial(cores, share_weights=shared)) as stand:
        ((key, opened),) = stand.opened.items()
        gpu = stand.device.gpu.id
        before = _others_bytes()
        for index in range(most):
            name = f"worker{index}"
            await stand.rig.do(CreatePartition(gpu, name, 50), _LIMIT_S)
            await stand.rig.do(Load(gpu, name, key), _LIMIT_S)
            request = opened.request(stand.rig.next_id(), stand.clock.now_ms(), _PATIENT_MS)
            batch = Batch(stand.rig.next_id(), key, (request,), 1)
            await stand.rig.run(name, batch, _LIMIT_S)
            found.append(_others_bytes() - before)
        for index in range(most):
            await stand.rig.do(ReleasePartition(gpu, f"worker{index}"), _LIMIT_S)
    return found


def _others_bytes() -> int:
    """Proportional set sizes of this process and its children: sharing moves pages between them."""
    own = os.getpid()
    return processes.pss_bytes([own, *processes.descendants([own])])
