"""An answer as plain values, for programs."""

from __future__ import annotations

from typing import Final

import msgspec

from interlace.cli.planning.table import sentences
from interlace.planning.capacity_plan import CapacityPlan

_SCHEMA: Final = 1


def report(found: CapacityPlan) -> dict[str, object]:
    """The answer as plain values: units in the names, ``None`` where a figure has no value."""
    bound = found.bound
    return {
        "schema": _SCHEMA,
        "system": found.system,
        "gpu": found.scenario.gpu.kind,
        "gpus": found.gpus,
        "lower_bound": {
            "gpus": bound.gpus,
            "area": bound.area.accelerators,
            "configuration": bound.configuration.accelerators,
            "memory": bound.memory.accelerators,
            "excluded": bound.excluded,
        },
        "gap": found.gap if found.served else None,
        "cost_per_hour": found.cost_per_hour,
        "planning_s": found.planning_s,
        "memory_bytes": found.memory_bytes,
        "partitions": found.plan.partitions,
        "models": {one.model: _model(found, one.model) for one in found.scenario.demand},
        "unserved_rows_per_s": {k: _finite(v) for k, v in found.plan.unserved_rows_per_s.items()},
        "reasons": found.plan.reasons,
        "said": sentences(found),
    }


def as_json(value: object) -> str:
    """Indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value)).decode()


def _model(found: CapacityPlan, model: str) -> dict[str, object]:
    asked = next(one for one in found.scenario.demand if one.model == model)
    expected = found.expected.get(model)
    return {
        "rate_rps": asked.rows_per_s,
        "slo_ms": asked.slo_ms,
        "attainment_wanted": asked.attainment,
        "cv": asked.cv,
        "p99_ms": None if expected is None else _finite(expected.p99_ms),
        "attainment": None if expected is None else expected.attainment,
        "price_gpus_per_rps": found.bound.best.price.get(model),
    }


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None
