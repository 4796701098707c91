"""Brings ensembles up and down, and follows the models that they join."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from interlace.apps.budgets import by_work, exact, step_cost
from interlace.apps.graph import App, check_members, read_ensemble
from interlace.apps.runner import AppRuntime
from interlace.control.model_preparer import PreparedModel
from interlace.control.registry import VersionEntry, VersionRegistry, VersionState
from interlace.core.errors import Reason, RepositoryError, ServeError
from interlace.core.model import Model
from interlace.perf.latency import surface
from interlace.repository.config_json import config_json
from interlace.repository.draft import Draft
from interlace.server.model_table import ModelTable, ServedModel

_log = logging.getLogger(__name__)
_WHOLE: Final = 100


@dataclass(frozen=True, slots=True)
class _Served:
    draft: Draft
    app: App
    model: Model


class Ensembles:
    """The ensembles of one server."""

    def __init__(self, apps: AppRuntime, table: ModelTable, registry: VersionRegistry) -> None:
        self._apps = apps
        self._table = table
        self._registry = registry
        self._served: dict[str, _Served] = {}

    def serve(self, draft: Draft, generation: int) -> Model:
        """Route to an ensemble whose members are served.

        Raises:
            RepositoryError: its graph is wrong, or a member is not served or does not fit.
        """
        model = replace(draft.provisional(), generation=generation)
        app = read_ensemble(draft.config, draft.name, model.signature)
        check_members(app, model.signature, self._find, draft.config)
        self._apps.add(app, model)
        self._table.publish(ServedModel(model, config=config_json(model, draft.config)))
        self._served[model.key] = _Served(draft, app, model)
        return model

    def serve_all(self, drafts: Sequence[Draft]) -> list[Model]:
        """Serve what can be served, those within others first; the registry has why others not."""
        left, serving = list(drafts), list[Model]()
        failures: dict[int, str] = {}
        progress = True
        while progress:
            progress = False
            for draft in tuple(left):
                try:
                    model = self.serve(draft, 0)
                except RepositoryError as error:
                    failures[id(draft)] = str(error)
                    continue
                progress = True
                left.remove(draft)
                serving.append(model)
                self._enter(model, "")
        for draft in left:
            why = failures[id(draft)]
            entry = VersionEntry(draft.name, str(draft.version), VersionState.UNAVAILABLE, why)
            self._registry.put(entry)
            _log.error("%s is not served: %s", draft.name, why)
        return serving

    def remove(self, model: Model) -> None:
        """Stop routing to an ensemble; accepted requests are still answered."""
        self._table.withdraw(model.key)
        self._apps.remove(model.key)
        self._served.pop(model.key, None)

    def members(self, draft: Draft) -> list[str]:
        """Names of the models that an ensemble joins.

        Raises:
            RepositoryError: its graph is wrong.
        """
        app = read_ensemble(draft.config, draft.name, draft.provisional().signature)
        return list(dict.fromkeys(step.model for step in app.steps))

    def follow(self) -> None:
        """Look again at every ensemble after models were loaded or unloaded."""
        for one in self._served.values():
            why = ""
            try:
                check_members(one.app, one.model.signature, self._find, one.draft.config)
            except RepositoryError as error:
                why = str(error)
            served = self._table.resolve(one.model.name, str(one.model.version))
            if served.ready != (not why):
                served.ready = not why
                self._enter(one.model, why)
                state = f"is not ready: {why}" if why else "is ready again"
                _log.warning("ensemble %s %s", one.model.name, state)

    def _enter(self, model: Model, why: str) -> None:
        state = VersionState.UNAVAILABLE if why else VersionState.READY
        self._registry.put(VersionEntry(model.name, str(model.version), state, why, model))

    def _find(self, name: str, version: str) -> Model:
        served = self._table.resolve(name, version)
        if not served.ready:
            raise ServeError(Reason.NOT_READY, f"model '{name}' is not ready")
        return served.model


def member_slos_ms(
    drafts: Sequence[Draft], members: Mapping[str, PreparedModel]
) -> dict[str, float]:
    """The time that the tightest ensemble leaves to each member, by deployment key.

    An SLO is divided so that the members cost the least of a whole accelerator, at the ensemble's
    expected rate. If no split is feasible, it is divided in proportion to the latencies of one row.
    Plans are made for these times; at run time a step has what is left. ``members`` are by name.
    """
    found: dict[str, float] = {}
    for draft in drafts:
        try:
            app = read_ensemble(draft.config, draft.name, draft.provisional().signature)
        except RepositoryError:
            continue
        if not all(step.model in members for step in app.steps):
            continue
        steps = [members[step.model] for step in app.steps]
        slo_ms, rate_rps = draft.terms.slo_ms, draft.terms.rate_rps or 0.0
        latencies_ms = [_latencies_ms(one) for one in steps]
        costs = [step_cost(one, rate_rps) for one in latencies_ms]
        budgets = exact(app.readers, costs, slo_ms)
        if budgets is None:
            budgets = by_work(app.readers, [one[0] for one in latencies_ms], slo_ms)
        for one, budget_ms in zip(steps, budgets, strict=True):
            key = one.model.key
            found[key] = min(found.get(key, budget_ms), budget_ms)
    return found


def _latencies_ms(one: PreparedModel) -> list[float]:
    """On a whole accelerator, for batches 1, 2, ..."""
    known = surface(one.profile)
    sizes = range(1, one.model.signature.max_batch + 1)
    return [known.latency_ms(rows, _WHOLE) for rows in sizes]
