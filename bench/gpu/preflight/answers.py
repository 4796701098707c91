"""Models end to end through a device: a batch of different rows, against the CPU's answers."""

from collections.abc import AsyncIterator
from typing import Any, Final

import numpy as np
import torch

from bench.fidelity.measured import half_pct
from bench.fidelity.stand import Opened, Stand
from bench.gpu.bench import Bench
from bench.gpu.devices import maker
from bench.gpu.opened import stand
from bench.gpu.rows import Row, failed, judged, skipped
from interlace.core.messages import CreatePartition, Load, ReleasePartition, Run
from interlace.core.request import Batch, Request
from interlace.device.cuda.backend.base import LibraryContext
from interlace.device.cuda.models.opening import open_portable
from interlace.formats import open_torch

#: A network of convolutions, and one of matrix products.
MODELS: Final = ("resnet50", "bert_base")
_ROWS: Final = 4
_NAME: Final = "preflight"
_LIMIT_S: Final = 60.0
#: Beside the largest value: the models run in half precision, which costs them 0.0007 and 0.003.
#: Answers of different rows are 0.02 apart and more.
_CLOSE: Final = 0.01


async def answers(
    bench: Bench, kind: str, context: LibraryContext | None = None
) -> AsyncIterator[Row]:
    """A row a model on one device of that mechanism."""
    words = f" on {kind}" if context is None else f" on {kind}, libraries in the {context} context"
    if bench.left_s <= 0:
        yield skipped(f"models{words}", "no time was left for it")
        return
    try:
        async with stand(bench, maker(bench, kind, context=context), MODELS) as opened:
            gpu = opened.device.gpu
            await opened.rig.do(CreatePartition(gpu.id, _NAME, half_pct(gpu)), _LIMIT_S)
            for one in opened.opened.values():
                what = f"{one.model.name}{words}"
                try:
                    yield await _answer(opened, one, what)
                except Exception as error:
                    yield failed(what, error)
            await opened.rig.do(ReleasePartition(gpu.id, _NAME), _LIMIT_S)
    except Exception as error:
        yield failed(f"models{words}", error)


async def _answer(opened: Stand, one: Opened, what: str) -> Row:
    gpu, rows = opened.device.gpu.id, min(_ROWS, one.model.signature.max_batch)
    await opened.rig.do(Load(gpu, _NAME, one.model.key, (rows,)), _LIMIT_S)
    requests = tuple(one.request(number, 0.0, 1e9) for number in range(rows))
    batch = Batch(opened.rig.next_id(), one.model.key, requests, rows)
    done = await opened.rig.do(Run(gpu, _NAME, batch), _LIMIT_S)
    found = np.stack([opened.values(tensors[0]).ravel() for tensors in done.finished.outputs])
    opened.device.free(batch.id)
    wanted = _on_this_cpu(opened, one, requests)
    off, nearest = compared(found.astype(np.float64), wanted)
    own = all(place == at for at, place in enumerate(nearest))
    return judged(
        what, "the CPU's answers",
        f"{off:.4f} of the largest value off"
        + ("" if own else f"; rows are nearest to those of {nearest}"),
        off <= _CLOSE and own, off=off, nearest=nearest, took_ms=done.took_ms,
    )  # fmt: skip


def compared(found: Any, wanted: Any) -> tuple[float, list[int]]:
    """How far answers [rows, values] are off beside the largest value; for each, the row of the
    right answers that is nearest to it."""
    off = float(np.abs(found - wanted).max() / max(1e-12, np.abs(wanted).max()))
    nearest = [int(np.abs(wanted - row).max(axis=1).argmin()) for row in found]
    return off, nearest


def _on_this_cpu(opened: Stand, one: Opened, requests: tuple[Request, ...]) -> Any:
    """The first output in FP32 [rows, values], from the same bytes."""
    portable = open_portable(one.model, "cpu", open_torch)
    names = [tensor.name for tensor in requests[0].inputs]
    values = {
        name: torch.from_numpy(
            np.concatenate([opened.values(each.inputs[at]) for each in requests])
        )
        for at, name in enumerate(names)
    }
    with torch.inference_mode():
        first = portable.outputs(values)[0]
    return first.double().numpy().reshape(len(requests), -1)
