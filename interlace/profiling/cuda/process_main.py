"""Entry of a process that takes models apart on a GPU: a task file in, lines of findings out."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import msgspec

from interlace.device.cuda.backend.library_trial import library_threads
from interlace.device.cuda.driver.errors import CudaError
from interlace.device.cuda.lanes import Lanes
from interlace.device.cuda.worker.context import made_backend
from interlace.device.process.entry import function_named
from interlace.profiling.cuda.examine import examine
from interlace.profiling.cuda.task import GpuTask
from interlace.profiling.findings import PartFindings


def main(task_file: str, findings_file: str) -> None:
    """Measure every model of the task; each model's line is written when it is done."""
    task = msgspec.json.decode(Path(task_file).read_bytes(), type=GpuTask)
    with ExitStack() as steps:
        backend = made_backend(task.backend, task.gpu, steps)
        lanes: Lanes = function_named(task.lanes)(backend.driver)
        steps.callback(lanes.close)
        threads = library_threads(task.handle_context, backend, lanes, print)
        steps.callback(threads.close)
        backend = backend._replace(threads=threads)
        lost = False
        file = steps.enter_context(Path(findings_file).open("ab", buffering=0))
        for model in task.models:
            try:
                found = examine(task, model, backend, lanes)
            except Exception as error:
                found = PartFindings(model.key, error=f"{type(error).__name__}: {error}")
                lost = isinstance(error, CudaError) and error.sticky
            file.write(msgspec.json.encode(found) + b"\n")
            if lost:
                steps.pop_all()  # nothing can be given back to a GPU that failed
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
