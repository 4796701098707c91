"""Entry of a process that takes models apart on cores: a task file in, lines of findings out."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from interlace.profiling.cpu.layers import measure_layers
from interlace.profiling.cpu.task import CoresTask
from interlace.profiling.findings import PartFindings


def main(task_file: str, findings_file: str) -> None:
    """Measure every model of the task; each model's line is written when it is done."""
    task = msgspec.json.decode(Path(task_file).read_bytes(), type=CoresTask)
    os.sched_setaffinity(0, task.cores)
    with Path(findings_file).open("ab", buffering=0) as file:
        for model in task.models:
            try:
                seen = measure_layers(model, len(task.cores), task.weights_dir, task.takes)
                found = PartFindings(model.key, seen.layers, cold_ms=seen.cold_ms)
            except Exception as error:
                found = PartFindings(model.key, error=f"{type(error).__name__}: {error}")
            file.write(msgspec.json.encode(found) + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
