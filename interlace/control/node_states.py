"""What this server tells routers and controllers of itself."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from interlace.apps.runner import AppRuntime
from interlace.control.assignments import Assignments
from interlace.control.model_files import WantedModels
from interlace.core.node import ModelOutlook, NodeState
from interlace.engine.engine import Engine
from interlace.runtime.clock import Clock
from interlace.server.model_table import ModelTable, ServedModel

#: A state stands for so long, and longer where making one takes more than this part of the time.
_FRESH_MS: Final = 10.0
_PART: Final = 0.02


class NodeStates:
    """The newest state, made when it is asked for and the last one is old."""

    def __init__(
        self,
        engine: Engine,
        table: ModelTable,
        clock: Clock,
        accepting: Callable[[], bool],
        settled: Callable[[], bool],
        assignments: Assignments,
        wanted: WantedModels,
        apps: AppRuntime,
    ) -> None:
        self._engine = engine
        self._table = table
        self._now_ms = clock.now_ms
        self._accepting = accepting
        self._settled = settled
        self._assignments = assignments
        self._wanted = wanted
        self._apps = apps
        self._old_at_ms = 0.0
        self._last = NodeState(secrets.randbits(48), 0, {}, accepting=False)

    def state(self) -> NodeState:
        """How this node is."""
        now_ms = self._now_ms()
        accepting, told = self._accepting(), self._assignments
        settled = not told.under_way and self._settled()
        known = self._last.accepting, self._last.settled, self._last.revision
        if now_ms >= self._old_at_ms or (accepting, settled, told.revision) != known:
            self._last = replace(
                self._last, number=self._last.number + 1, models=self._models(now_ms),
                accepting=accepting, settled=settled, revision=told.revision,
                failures={**told.failures, **self._wanted.failures}, files=self._wanted.taken,
            )  # fmt: skip
            took_ms = self._now_ms() - now_ms
            self._old_at_ms = now_ms + max(_FRESH_MS, took_ms / _PART)
        return self._last

    @property
    def began(self) -> int:
        """Another number after each start."""
        return self._last.began

    def _models(self, now_ms: float) -> dict[str, ModelOutlook]:
        """By public name, of the version that a request without one gets."""
        outlooks = self._engine.outlooks(now_ms)
        newest = {served.model.name: served for served in self._table.all()}
        found = {
            name: replace(outlooks[served.key], arrived=_arrived(served))
            for name, served in newest.items()
            if served.ready and served.key in outlooks
        }
        for app in self._apps.served.values():  # those within others come first
            served, name = newest.get(app.model.name), app.model.name
            steps = [found[model] for model in app.app.members if model in found]
            if served is not None and served.ready and len(steps) == len(app.app.members):
                found[name] = _of_app(steps, app.model.terms.slo_ms, _arrived(served))
        return found


def _of_app(steps: Sequence[ModelOutlook], slo_ms: float, arrived: int) -> ModelOutlook:
    """As if its models ran one after the other; the slowest decides its pace."""
    return ModelOutlook(
        sum(one.wait_ms for one in steps),
        sum(one.alone_ms for one in steps),
        max(one.row_ms for one in steps),
        slo_ms,
        sum(one.cold_ms for one in steps),
        max(one.waiting_rows for one in steps),
        arrived,
        any(one.lent for one in steps),
    )


def _arrived(served: ServedModel) -> int:
    statistics = served.statistics
    return statistics.success + statistics.pending + sum(statistics.failures.values())
