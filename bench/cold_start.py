"""A cold start on this machine's cores, beside a warm run and beside opening the model anew.

Weights are in the page cache, or on disk, and plans are made for where they are. Takes of all ways
alternate, so that what else the machine does is shared by them; ratios are of the same round, with
their spread. "opened" is what loading is elsewhere: the model is made, gets its weights, and runs
once. What models of the zoo spend on random weights is in that.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from bench.harness import Report, Row, main, spread
from interlace.assembly.machine import drafts, find_models
from interlace.core.loading import DISK_LINK, HostLinks
from interlace.core.model import Model
from interlace.formats import open_torch
from interlace.formats.onnx import open_runner
from interlace.formats.torch_runner import sample_of
from interlace.perf.disk_tier import on_disk
from interlace.policy.cold_starts.catalog import COLD_POLICIES
from interlace.profiling.cpu.layer_bench import LayerBench, LayeredModel, took_ms
from interlace.profiling.cpu.onnx_layers import OnnxLayers
from interlace.profiling.cpu.process_main import layered

_Times = dict[str, list[float]]
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
    described = next(
        draft.provisional() for draft in drafts(models, find_models(models, (model,)), [])
    )
    with TemporaryDirectory() as folder:
        times = _rounds(described, folder, takes, threads, disk)
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


def _rounds(model: Model, folder: str, takes: int, threads: int, disk: bool) -> _Times:
    with layered(model, threads, folder) as opened:
        cold, file = opened.cold, opened.cold.file
        bench = LayerBench(opened, min(takes, 5))
        layers, _ = bench.as_started(bench.layers())
        known = layers, HostLinks(takes_cores=True)
        if disk:
            known = on_disk(layers, takes_cores=True), DISK_LINK
        plans = {way: COLD_POLICIES[way].cold_start(*known).steps for way in _WAYS}
        plans["all left in the file"] = ()
        anew = _opened_anew(opened, model, threads)

        def read() -> None:
            for index, extent in enumerate(file.extents):
                file.read(index, bench.memory, extent.begin)

        def copy_all() -> None:
            cold.place(bench.places(range(len(file.uses))), bench.memory)
            read()
            opened.run()

        times: _Times = {}
        for _ in range(takes):
            copy_all()
            opened.run()  # where pages are exchanged, the first run finds them
            times.setdefault("warm", []).append(took_ms(opened.run))
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


def _opened_anew(opened: LayeredModel, model: Model, threads: int) -> Callable[[], None]:
    """What loading is elsewhere: the model is opened from its own files, and runs once."""
    if isinstance(opened, OnnxLayers):

        def run_onnx() -> None:
            with closing(open_runner(model, threads, None)) as runner:
                runner.run(opened.inputs)

        return run_onnx
    values = sample_of(open_torch(model), model)

    def run_torch() -> None:
        open_torch(model).call(values)

    return run_torch


if __name__ == "__main__":
    main(cold_start)
