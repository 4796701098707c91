"""Who is compared on the mix, and how each is started."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from bench.peers import models
from bench.peers.table import SERVERS, Peer, mosec, ours

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


def triton_config(sort: models.Sort, tuning: Tuning) -> str:
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


def write_repository(folder: Path, site: Path, tuning: Tuning) -> None:
    """Write the repository afresh; ``site`` has the libraries of the models."""
    shutil.rmtree(folder, ignore_errors=True)
    for sort in models.MIX:
        version = folder / sort.name / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(triton_config(sort, tuning))
        source = MODEL.format(
            here=str(models.HERE), site=str(site), threads=tuning.threads, name=sort.name
        )
        (version / "model.py").write_text(source)


#: A peer's name is its program and its tuning: the best one is reported.
TUNINGS = {
    "1x1": Tuning(1, 1),
    "2x1": Tuning(2, 1),
    "1x2": Tuning(1, 2),
    "1x1r": Tuning(1, 1, limited=True),
    "2x1r": Tuning(2, 1, limited=True),
    "1x1r7": Tuning(1, 1, 0.7, limited=True),
}
NAMES = ("ours", "triton-1x1", "triton-2x1", "triton-2x1r", "mosec-1x1")
CORES = 2


def peer(name: str, home: Path) -> Peer:
    """A server by name, its repository written if it needs one."""
    if name == "ours":
        return ours(home, models.EXAMPLES, "ours-mix-profiles")
    program, tuning = name.split("-")
    how = TUNINGS[tuning]
    env = {"OMP_NUM_THREADS": str(how.threads), "MKL_NUM_THREADS": str(how.threads)}
    if program == "triton":
        (site,) = (home / "pytriton" / "lib").glob("python3.*/site-packages")
        (home / "triton_run").mkdir(exist_ok=True)
        write_repository(home / "triton_run" / f"mix-{name}", site, how)
        limit = ("--rate-limit=execution_count", f"--rate-limit-resource=core:{CORES}")
        start = (f"{SERVERS}/triton.sh", *(limit if how.limited else ()))
        return Peer(start, home, {}, {**env, "TRITON_REPO": f"mix-{name}"})
    made = mosec(home, models.MIX, instances=how.instances, threads=how.threads)
    return replace(made, env={**made.env, **env})
