"""Writes Triton's model repository for the mix: the same models in its Python backend.

Instances and threads are what a careful operator would tune; every model gets a queue policy that
gives up on requests once they can hardly make their SLO.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from bench.mix import models

HERE = Path(__file__).resolve().parent
KINDS = {"FP32": "TYPE_FP32", "INT64": "TYPE_INT64"}
QUEUE = """dynamic_batching {{
  max_queue_delay_microseconds: 0
  default_queue_policy {{
    timeout_action: REJECT
    default_timeout_microseconds: {timeout_us}
    allow_timeout_override: true
    max_queue_size: 128
  }}
}}
"""
MODEL = """import sys
sys.path[:0] = [{here!r}, {site!r}]  # the backend's stub ignores PYTHONPATH
import models
models.limit_threads({threads})
import numpy as np
import triton_python_backend_utils as pb

SORT = models.BY_NAME[{name!r}]


class TritonPythonModel:
    def initialize(self, args):
        self.run = models.load(SORT.name, {threads})

    def execute(self, requests):
        rows = [
            [pb.get_input_tensor_by_name(r, t.name).as_numpy() for t in SORT.inputs]
            for r in requests
        ]
        if len(rows) == 1:
            inputs = rows[0]
        else:
            inputs = [np.concatenate(column) for column in zip(*rows)]
        outputs = self.run(inputs)
        at, answers = 0, []
        for row in rows:
            end = at + len(row[0])
            tensors = [
                pb.Tensor(t.name, np.ascontiguousarray(y[at:end]))
                for t, y in zip(SORT.outputs, outputs)
            ]
            answers.append(pb.InferenceResponse(tensors))
            at = end
        return answers
"""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Instances a model, threads an instance, and how Triton queues.

    ``queue_share`` is the part of its SLO that a request may wait; ``limited`` has Triton's rate
    limiter run no more models at once than there are cores.
    """

    instances: int
    threads: int
    queue_share: float = 0.5
    limited: bool = False


#: One of the cores that Triton's rate limiter hands out, for as long as an execution takes.
CORE = 'rate_limiter { resources [{ name: "core" global: true count: 1 }] }'


def config(sort: models.Sort, tuning: Tuning) -> str:
    """``config.pbtxt`` of a model."""
    parts = [f'name: "{sort.name}"', 'backend: "python"', f"max_batch_size: {sort.max_batch}"]
    for side, tensors in (("input", sort.inputs), ("output", sort.outputs)):
        parts += [
            f'{side} {{ name: "{t.name}" data_type: {KINDS[t.datatype]} dims: {list(t.dims)} }}'
            for t in tensors
        ]
    parts.append(QUEUE.format(timeout_us=int(models.slo_ms(sort.name) * 1e3 * tuning.queue_share)))
    limit = CORE if tuning.limited else ""
    parts.append(f"instance_group [{{ count: {tuning.instances} kind: KIND_CPU {limit} }}]")
    return "\n".join(parts) + "\n"


def write(folder: Path, site: Path, tuning: Tuning) -> None:
    """Write the repository afresh; ``site`` has the libraries of the models."""
    shutil.rmtree(folder, ignore_errors=True)
    for sort in models.SORTS:
        version = folder / sort.name / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(config(sort, tuning))
        source = MODEL.format(
            here=str(HERE), site=str(site), threads=tuning.threads, name=sort.name
        )
        (version / "model.py").write_text(source)
