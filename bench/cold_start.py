"""A cold start on this machine's cores, beside a warm run and beside opening the model anew.

Weights are in the page cache, or on disk. Takes of all ways alternate, so that what else the
machine does is shared by them; ratios are of the same round, with their spread. "opened" is what
loading is elsewhere: the model is made, gets its weights, and runs once. What models of the zoo
spend on random weights is in that.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import torch

from bench.harness import Report, Row, main, spread
from interlace.assembly.model_folders import drafts, find_models
from interlace.core.loading import HostLinks
from interlace.core.model import Model
from interlace.formats import open_torch
from interlace.formats.runner import WARM_RUNS
from interlace.formats.torch_runner import sample_of
from interlace.formats.torch_sharing import share_weights
from interlace.policy.cold_starts.catalog import COLD_POLICIES
from interlace.profiling.cpu.layers import LayerBench, took_ms

_WAYS = ("pipeswitch", "deepplan-dha", "interlace")


def cold_start(
    models: Annotated[Path, "the repository"] = Path("examples/zoo"),
    /,
    *,
    model: Annotated[str, "one of its models"] = "bert_base",
    takes: Annotated[int, "rounds of all ways"] = 9,
    threads: Annotated[int, "of the model"] = 1,
    disk: Annotated[bool, "weights leave the page cache before each cold start"] = False,
) -> Report:
    """Warm, copied first and then run, three plans, and opened."""
    torch.set_num_threads(threads)
    described = next(
        draft.provisional() for draft in drafts(models, find_models(models, (model,)), [])
    )
    with TemporaryDirectory() as folder, torch.inference_mode():
        times = _rounds(described, folder, takes, disk)
    rows = []
    for way, ones in times.items():
        middle = spread(ones)
        assert middle is not None
        rows.append(Row(f"{model}, {way}", None, middle.median, " ms"))
        for base in {"warm": (), "read": ("warm",)}.get(way, ("warm", "opened", "read")):
            if base == way or base not in times:
                continue
            over = spread([one / other for one, other in zip(ones, times[base], strict=True)])
            assert over is not None
            words = f"{model}, {way} over {base} ({over.least:.2f}-{over.greatest:.2f})"
            rows.append(Row(words, None, over.median))
    return Report(rows, figures=times)


def _rounds(model: Model, folder: str, takes: int, disk: bool) -> dict[str, list[float]]:
    opened = open_torch(model)
    values = sample_of(opened, model)

    def run() -> None:
        opened.call(values)

    def anew() -> None:
        open_torch(model).call(values)

    for _ in range(WARM_RUNS):
        run()
    cold = share_weights(opened.tensors, model, folder, run).cold
    assert cold is not None
    with closing(cold):
        bench = LayerBench(opened.tensors, cold, run, min(takes, 5))
        layers, file = bench.layers(), cold.file
        links = HostLinks(takes_cores=True)
        plans = {way: COLD_POLICIES[way].cold_start(layers, links).steps for way in _WAYS}
        plans["all left in the file"] = ()

        def read() -> None:
            for index, extent in enumerate(file.extents):
                file.read(index, bench.memory, extent.begin)

        def copy_all() -> None:
            cold.place(bench.places(range(len(file.uses))), bench.memory)
            read()
            run()

        times: dict[str, list[float]] = {}
        for _ in range(takes):
            copy_all()
            times.setdefault("warm", []).append(took_ms(run))
            if disk:
                cold.leave(range(len(file.uses)))
                file.forget()
                file.drop()
                times.setdefault("read", []).append(took_ms(read))
            else:
                times.setdefault("copy", []).append(took_ms(copy_all))
            for way, steps in plans.items():
                times.setdefault(way, []).append(bench.start_ms(steps, not disk))
            if not disk:
                times.setdefault("opened", []).append(took_ms(anew))
    return times


if __name__ == "__main__":
    main(cold_start)
