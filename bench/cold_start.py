"""A cold start on this machine's cores, beside a warm run and beside opening the model anew.

Weights are in the page cache, or on disk. Takes of all ways alternate; ratios are of the same
round, with their spread. "flushed" are a warm run and our start after other memory was read, as
much as the largest cache holds. "opened": the model is made, gets its weights, and runs once.
"loaded": weights go from their file to memory of their own, and a module that is ready runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Final

import numpy as np

from bench.harness import Report, Row, Table, main, spread
from interlace.assembly.machine import drafts, find_models
from interlace.core.loading import DISK_LINK, HostLinks
from interlace.core.model import Model
from interlace.core.user_errors import UserError
from interlace.formats import open_torch
from interlace.formats.onnx import open_runner
from interlace.formats.page_cache import read_ahead
from interlace.formats.torch_runner import sample_of
from interlace.formats.weights_file import WeightsFile
from interlace.perf.cold_start import on_disk
from interlace.policy.cold_starts.catalog import COLD_POLICIES
from interlace.policy.cold_starts.deepplan import left
from interlace.profiling.cpu.layer_bench import LayerBench, LayeredModel, took_ms
from interlace.profiling.cpu.onnx_layers import OnnxLayers
from interlace.profiling.cpu.process_main import layered

_Times = dict[str, list[float]]
_WAYS: Final = ("copy", "pipeswitch", "deepplan-dha", "interlace")
_LEFT: Final = "all left in the file"
_FLUSHED: Final = "interlace, flushed"
_CACHES: Final = Path("/sys/devices/system/cpu/cpu0/cache")


def cold_start(
    models: Annotated[Path, "the repository"] = Path("examples/zoo"),
    /,
    *,
    model: Annotated[str, "one of its models"] = "bert_base",
    takes: Annotated[int, "rounds of all ways"] = 9,
    threads: Annotated[int, "of the model"] = 1,
    disk: Annotated[bool, "weights leave the page cache before each cold start"] = False,
) -> Report:
    """Warm, copied first and then run, three plans, all left in the file, opened and loaded."""
    described = _described(models, model)
    with TemporaryDirectory(dir=Path.home()) as folder:  # /tmp may be memory, which has no disk
        predicted, times = _rounds(described, folder, takes, threads, disk)
    aims = (
        [("interlace", "read", 1.15), ("loaded", "interlace", 3.5), ("opened", "interlace", None)]
        if disk
        else [
            ("interlace", "warm", 1.10),
            (_FLUSHED, "warm, flushed", 1.10),
            ("opened", "interlace", 4.0),
            ("loaded", "interlace", None),
        ]
    )
    rows = [
        Row(f"{model}, {way} over {base} ({low:.2f}-{high:.2f})", aim, middle)
        for way, base, aim in aims
        if way in times
        for middle, low, high in (_over(times, way, base),)
    ]
    cells = [
        (
            way,
            median(ones),
            told := predicted.get(way),
            told and told / median(ones),
            "{:.2f} ({:.2f}-{:.2f})".format(*_over(times, way, "warm")),
        )
        for way, ones in times.items()
    ]
    heads = (model, "ms", "predicted", "of what it took", "over warm")
    return Report(rows, tables=[Table(heads, cells)], figures=[predicted, times])


def _over(times: _Times, way: str, base: str) -> tuple[float, float, float]:
    found = spread([one / other for one, other in zip(times[way], times[base], strict=True)])
    assert found is not None
    return found[:3]


def _described(models: Path, name: str) -> Model:
    """The model of that name.

    Raises:
        UserError: there is none, or it is broken.
    """
    failures: list[str] = []
    for draft in drafts(models, find_models(models, (name,)), failures):
        return draft.provisional()
    raise UserError("; ".join(failures))


def _rounds(
    model: Model, folder: str, takes: int, threads: int, disk: bool
) -> tuple[dict[str, float], _Times]:
    """What each way is predicted to take, and what it took."""
    with layered(model, threads, folder) as opened:
        cold, file = opened.cold, opened.cold.file
        bench = LayerBench(opened, min(takes, 5))
        layers, _ = bench.as_started(bench.layers())
        tier = layers, HostLinks(takes_cores=True)
        if disk:
            tier = on_disk(layers, takes_cores=True), DISK_LINK
        plans = {way: COLD_POLICIES[way].cold_start(*tier) for way in _WAYS} | {_LEFT: left(*tier)}
        anew = {"opened": _opened_anew(opened, model, threads)}
        if isinstance(file, WeightsFile):
            anew["loaded"] = _loaded_anew(opened, file)
        flush = _flush()

        def cold_again() -> None:
            cold.leave(range(len(file.uses)))
            file.forget()
            if disk:
                file.drop()
                _drop(Path(model.path))

        times: _Times = {}
        for _ in range(takes):
            cold.place(bench.places(range(len(file.uses))), bench.memory)
            opened.run()  # where pages are exchanged, the first run finds them
            taken = {"warm": took_ms(opened.run)}
            if disk:
                cold_again()
                taken["read"] = took_ms(lambda: read_ahead(file.path))
            else:
                flush()
                taken["warm, flushed"] = took_ms(opened.run)
            for way, plan in plans.items():
                taken[way] = bench.start_ms(plan.steps, not disk, overlapped=plan.overlapped)
            if not disk:
                taken[_FLUSHED] = bench.start_ms(plans["interlace"].steps, before=flush)
            for way, run in anew.items():
                cold_again()
                taken[way] = took_ms(run)
            for way, took in taken.items():
                times.setdefault(way, []).append(took)
    return {way: plan.end_ms for way, plan in plans.items()}, times


def _drop(folder: Path) -> None:
    """Have a model's own files leave the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _flush() -> Callable[[], object]:
    """Reads other memory, a quarter more than the processor's largest cache holds."""
    sizes = [int(one.read_text().strip().rstrip("K")) for one in _CACHES.glob("index*/size")]
    return np.ones((max(sizes, default=1 << 16) << 10) * 5 // 4 // 8).sum


def _loaded_anew(opened: LayeredModel, file: WeightsFile) -> Callable[[], None]:
    """Weights from their file into memory of their own, and a run of the module that is ready."""

    def run() -> None:
        fresh = [one.clone() for use in range(len(file.uses)) for one in file.tensors(use).values()]
        opened.run()
        del fresh

    return run


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
