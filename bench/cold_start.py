"""A cold start on this machine's cores, beside a warm run and beside opening the model anew.

Weights are in the page cache. Takes of all ways alternate, so that what else the machine does is
shared by them; ratios are of the same round, with their spread. "opened" is what loading is today:
the model is made, gets its weights, and runs once. What models of the zoo spend on random weights
is in that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Annotated

import torch

from bench.harness import Report, Row, main, spread
from interlace.assembly.model_folders import drafts, find_models
from interlace.core.loading import HostLinks, WeightPath
from interlace.core.model import Model
from interlace.formats import open_torch
from interlace.formats.cold_weights import ColdWeights, weight_uses
from interlace.formats.runner import WARM_RUNS
from interlace.formats.samples import sample_values
from interlace.formats.tensor_file import storable
from interlace.policy.cold_starts.catalog import COLD_POLICIES
from interlace.profiling.cpu.layers import LayerBench

_WAYS = ("pipeswitch", "deepplan-dha", "interlace")


def cold_start(
    models: Annotated[Path, "the repository"] = Path("examples/zoo"),
    /,
    *,
    model: Annotated[str, "one of its models"] = "bert_base",
    takes: Annotated[int, "rounds of all ways"] = 9,
    threads: Annotated[int, "of the model"] = 1,
) -> Report:
    """Warm, copied first and then run, three plans, and opened."""
    torch.set_num_threads(threads)
    described = next(
        draft.provisional() for draft in drafts(models, find_models(models, (model,)), [])
    )
    with TemporaryDirectory() as folder, torch.inference_mode():
        times = _rounds(described, Path(folder), takes)
    rows = []
    for way, ones in times.items():
        over = spread([one / warm for one, warm in zip(ones, times["warm"], strict=True)])
        middle = spread(ones)
        assert over is not None and middle is not None
        rows.append(Row(f"{model}, {way}", None, middle.median, " ms"))
        if way != "warm":
            words = f"{model}, {way} over warm ({over.least:.2f}-{over.greatest:.2f})"
            rows.append(Row(words, None, over.median))
    return Report(rows, figures=times)


def _rounds(model: Model, folder: Path, takes: int) -> dict[str, list[float]]:
    opened = open_torch(model)
    inputs = model.signature.inputs or opened.spoken.inputs or ()
    values = sample_values(inputs, model, True, 0)
    weights = {name: one for name, one in opened.tensors.items() if storable(one)}

    def run() -> None:
        opened.call(values)

    def anew() -> None:
        open_torch(model).call(values)

    for _ in range(WARM_RUNS):
        run()
    with closing(ColdWeights(folder / "weights", weights, weight_uses(weights, run))) as cold:
        layers = LayerBench(weights, cold, run, min(takes, 5)).layers()
        copied = {
            way: [
                step.via is WeightPath.COPY
                for step in COLD_POLICIES[way]
                .cold_start(layers, HostLinks(takes_cores=True))
                .steps[1:]
            ]
            for way in _WAYS
        }
        copied["all left in the file"] = [False] * len(cold.uses)

        def copy_all() -> None:
            cold.place([True] * len(cold.uses))
            for index in range(len(cold.uses)):
                cold.copy(index)
            run()

        times: dict[str, list[float]] = {}
        for _ in range(takes):
            cold.place([True] * len(cold.uses))
            run()
            times.setdefault("warm", []).append(_took_ms(run))
            times.setdefault("copy", []).append(_took_ms(copy_all))
            for way, ones in copied.items():
                times.setdefault(way, []).append(_cold_ms(cold, run, ones))
            times.setdefault("opened", []).append(_took_ms(anew))
    return times


def _cold_ms(cold: ColdWeights, run: Callable[[], None], copied: Sequence[bool]) -> float:
    cold.forget()
    return _took_ms(lambda: cold.run(run, copied))


def _took_ms(run: Callable[[], None]) -> float:
    began_s = perf_counter()
    run()
    return 1000 * (perf_counter() - began_s)


if __name__ == "__main__":
    main(cold_start)
