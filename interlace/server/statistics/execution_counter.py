"""An observer of the runtime that enters every executed batch in its model's statistics."""

from __future__ import annotations

from collections.abc import Sequence

from interlace.core.messages import Command, Event, Run, WorkFinished
from interlace.server.model_table import ModelTable


class ExecutionCounter:
    """Counts executions and their phases by batch size, as statistics report them."""

    def __init__(self, table: ModelTable) -> None:
        self._table = table

    def __call__(self, now_ms: float, event: Event, commands: Sequence[Command]) -> None:
        if (
            type(event) is not WorkFinished
            or type(event.work) is not Run
            or event.failure is not None
        ):
            return
        batch, timing = event.work.batch, event.timing
        statistics = self._table.statistics(batch.model)
        if statistics is not None:
            statistics.executed(batch.rows, timing.input_ms, timing.infer_ms, timing.output_ms)
