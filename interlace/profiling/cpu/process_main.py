"""Entry of a process that takes models apart on cores: a task file in, lines of findings out."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from interlace.core.model import Format, Model
from interlace.device.process.sandbox import confine
from interlace.profiling.cpu.layer_bench import LayerBench, LayeredModel
from interlace.profiling.extra_metrics import CoresTask, PartFindings, write_findings


def measure_layers(model: Model, threads: int, weights_dir: str | None, takes: int) -> PartFindings:
    """Measure the layers of a model for one row of its sample, in the order of execution.

    Times add up to those of the whole model: resident, left in its file, and copied from it during
    execution. Then the cold start planned from them is run. The file of weights stays in
    ``weights_dir``.

    Raises:
        RepositoryError: it does not open.
        OSError: no room for its weights in ``weights_dir``, or they cannot be swapped.
        MemoryError: no room for them in memory.
    """
    with layered(model, threads, weights_dir) as opened:
        bench = LayerBench(opened, takes)
        layers, cold_ms = bench.as_started(bench.layers())
        return PartFindings(model.key, layers, cold_ms=cold_ms)


@contextmanager
def layered(model: Model, threads: int, weights_dir: str | None) -> Iterator[LayeredModel]:
    """A model opened in this process to be measured by layer.

    Raises:
        RepositoryError: it does not open.
        OSError: no room for its weights in ``weights_dir``, or they cannot be swapped.
    """
    if model.format is Format.ONNX:
        from interlace.profiling.cpu.onnx_layers import OnnxLayers

        onnx = OnnxLayers(model, threads, weights_dir)
        with closing(onnx.cold):
            yield onnx
        return
    import torch

    from interlace.profiling.cpu.torch_layers import TorchLayers

    with torch.inference_mode():
        opened = TorchLayers.open(model, threads, weights_dir)
        with closing(opened.cold):
            yield opened


def main(task_file: str, findings_file: str) -> None:
    """Measure every model of the task; each model's line is written when it is done."""
    task = msgspec.json.decode(Path(task_file).read_bytes(), type=CoresTask)
    os.sched_setaffinity(0, task.cores)
    tempfile.tempdir = os.path.dirname(task_file)
    if task.models_dir:
        confine(Path(task.models_dir), filter(None, (task.weights_dir,)))

    def measure(model: Model) -> PartFindings:
        return measure_layers(model, len(task.cores), task.weights_dir, task.takes)

    write_findings(findings_file, task.models, measure)
