"""A simulation as arrays: what stands, what is believed, what waits, what happened."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

#: Arrays of records, whose fields mypy cannot see.
Table = Any

#: A deployed model. Hosts and queue are ranges of ``hosts`` and ``queued``; ``rank`` is the place
#: of its name in the alphabet. ``factor`` corrects what is believed of a batch, ``overall`` what is
#: believed where no shape is named; the rest is ``engine.beliefs``.
MODEL: Final = np.dtype(
    [
        ("slo_ms", "f8"), ("rate_rps", "f8"), ("factor", "f8"), ("spread", "f8"),
        ("overall", "f8"), ("overall_spread", "f8"), ("learned_ms", "f8"), ("margin_ms", "f8"),
        ("least_ms", "f8"), ("step_ms", "f8"), ("most_ms", "f8"), ("widened_ms", "f8"),
        ("lost_ms", "f8"),
        ("host_from", "i8"), ("host_to", "i8"), ("rank", "i8"), ("known", "i8"),
        ("first", "i8"), ("last", "i8"), ("limit", "i8"),
    ],
    align=True,
)  # fmt: skip
#: A partition; ``model`` is -1 while it is idle, else ``rows`` requests from ``batch`` on run.
PARTITION: Final = np.dtype(
    [
        ("round_ms", "f8"), ("free_at_ms", "f8"), ("started_ms", "f8"), ("begun_ms", "f8"),
        ("contending", "i8"), ("gpu", "i8"),
        ("slot_from", "i8"), ("slot_to", "i8"), ("model", "i8"), ("slot", "i8"), ("batch", "i8"),
        ("rows", "i8"),
    ],
    align=True,
)  # fmt: skip
#: A model in a partition: planned and largest batch, where its latencies begin in the tables, and
#: what ``engine.ledger`` keeps of it.
SLOT: Final = np.dtype(
    [
        ("last_start_ms", "f8"), ("hand_over_ms", "f8"), ("counter_ms", "f8"), ("owed_ms", "f8"),
        ("planned_rps", "f8"), ("contends", "i8"), ("model", "i8"), ("batch", "i8"),
        ("limit", "i8"), ("table", "i8"),
    ],
    align=True,
)  # fmt: skip
#: A model's host: the partition, and the slot in it.
HOST: Final = np.dtype([("partition", "i8"), ("slot", "i8")], align=True)
#: An accelerator: ranges of ``gpu_partitions`` and ``gpu_models``.
GPU: Final = np.dtype(
    [("part_from", "i8"), ("part_to", "i8"), ("model_from", "i8"), ("model_to", "i8")], align=True
)
#: Something that will happen: ``partition`` ends its batch, or, if -1, the engine is woken.
CALL: Final = np.dtype([("at_ms", "f8"), ("turn", "i8"), ("partition", "i8")], align=True)
#: One request. ``outcome`` is an index into ``OUTCOMES``, -1 while it is open.
REQUEST: Final = np.dtype(
    [
        ("arrived_ms", "f8"), ("deadline_ms", "f8"), ("answered_ms", "f8"), ("started_ms", "f8"),
        ("model", "i4"), ("outcome", "i4"), ("batch_rows", "i4"), ("partition", "i4"),
    ],
    align=True,
)  # fmt: skip
#: One batch that ended.
EXECUTION: Final = np.dtype(
    [("started_ms", "f8"), ("ended_ms", "f8"), ("partition", "i4"), ("rows", "i4"),
     ("model", "i4"), ("slot", "i4")],
    align=True,
)  # fmt: skip
#: What the dispatcher decided: ``dropped`` heads given up, then a batch of ``rows``.
LAUNCH: Final = np.dtype(
    [("partition", "i8"), ("slot", "i8"), ("rows", "i8"), ("dropped", "i8")], align=True
)
#: A slot's head that may start: see ``policy.dispatchers.deadline``.
CLAIM: Final = np.dtype(
    [
        ("deadline_ms", "f8"), ("run_ms", "f8"), ("latest_ms", "f8"), ("slot", "i8"),
        ("rows", "i8"), ("limit", "i8"), ("following", "i8"), ("rank", "i8"),
    ],
    align=True,
)  # fmt: skip
#: The clock and counters, in one record. ``source_turn`` is the next arrival's place among calls
#: of equal time; ``event`` is the request that arrived, else -1; ``asked`` accelerators dispatch.
STATE: Final = np.dtype(
    [
        ("now_ms", "f8"), ("wake_at_ms", "f8"), ("next_turn", "i8"), ("calls", "i8"),
        ("next_request", "i8"), ("source_turn", "i8"), ("open", "i8"), ("executions", "i8"),
        ("event", "i8"), ("asked", "i8"), ("launches", "i8"), ("lenience", "f8"), ("wish_ms", "f8"),
        ("lost_ms", "f8"),
    ],
    align=True,
)  # fmt: skip


class World(NamedTuple):
    """Everything a run reads and writes; compiled code takes this one argument."""

    state: Table  #: (1,) STATE
    models: Table  #: (M,) MODEL
    partitions: Table  #: (P,) PARTITION, in the engine's order
    slots: Table  #: (S,) SLOT
    hosts: Table  #: (S,) HOST, model by model
    gpus: Table  #: (G,) GPU
    gpu_partitions: Table  #: (P,) int64
    gpu_models: Table  #: int64: models hosted on each accelerator, in order of deployment
    believed_ms: Table  #: float64: L(rows) by slot, before correction
    true_ms: Table  #: float64: likewise, of the device
    requests: Table  #: (N,) REQUEST, in order of arrival
    queued: Table  #: (N,) int64: indices of requests, a range for each model
    executions: Table  #: (N,) EXECUTION
    calls: Table  #: CALL, a heap by time, then turn
    asked: Table  #: (G,) int64: accelerators to dispatch on, in order
    launches: Table  #: (P,) LAUNCH
    taken: Table  #: (M,) int64: rows that this decision has taken already
    claims: Table  #: (most slots of a partition,) CLAIM
