"""Brings ensembles up and down, and follows the models that they join."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from interlace.apps.budgets import row_latencies_ms, stage_budgets
from interlace.apps.graph import App, check_members, read_ensemble
from interlace.apps.runner import AppRuntime
from interlace.control.deployments import demand_of
from interlace.control.model_preparer import PreparedModel
from interlace.control.registry import VersionEntry, VersionRegistry, VersionState
from interlace.core.errors import Reason, RepositoryError, ServeError
from interlace.core.model import Model
from interlace.core.plan import Demand
from interlace.repository.config_json import config_json
from interlace.repository.draft import Draft
from interlace.server.model_table import ModelTable, ServedModel

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Ensembles:
    """The ensembles of one server."""

    _apps: AppRuntime
    _table: ModelTable
    _registry: VersionRegistry
    _served: dict[str, tuple[Draft, Model]] = field(default_factory=dict)
    #: Of the start, without a member or with a wrong graph.
    _missing: list[Draft] = field(default_factory=list)

    def serve(self, draft: Draft, generation: int) -> Model:
        """Route to an ensemble whose members are served.

        Raises:
            RepositoryError: its graph is wrong, or a member is not served or does not fit.
        """
        app = self._checked(draft)
        terms = replace(draft.terms, slo_ms=self._slo_ms(draft, app))
        model = replace(draft.provisional(), generation=generation, terms=terms)
        self._apps.add(app, model)
        self._table.publish(ServedModel(model, config=config_json(model, draft.config)))
        self._served[model.key] = draft, model
        return model

    def serve_all(self, drafts: Sequence[Draft]) -> list[Model]:
        """Serve what can be served; the registry has why others not, and ``follow`` tries again."""
        serving, failures = self._try(drafts)
        for draft, why in failures:
            entry = VersionEntry(draft.name, str(draft.version), VersionState.UNAVAILABLE, why)
            self._registry.put(entry)
            _log.error("%s is not served: %s", draft.name, why)
        self._missing = [draft for draft, _ in failures]
        return serving

    def _try(self, drafts: Sequence[Draft]) -> tuple[list[Model], list[tuple[Draft, str]]]:
        """Serve ensembles, those within others first; also returns why the rest cannot be."""
        left, serving = list(drafts), list[Model]()
        while True:
            failures = []
            for draft in left:
                try:
                    model = self.serve(draft, 0)
                except RepositoryError as error:
                    failures.append((draft, str(error)))
                    continue
                self._enter(model, "")
                serving.append(model)
            if len(failures) == len(left):
                return serving, failures
            left = [draft for draft, _ in failures]

    def offer(self, draft: Draft) -> None:
        """Serve an ensemble once its members are served here: a fleet assigns only models."""
        self.withdraw(draft.name)
        self._missing.append(draft)
        self.follow()

    def offered(self) -> dict[str, tuple[str, ...]]:
        """The members of each ensemble, served or not; those with a wrong graph are left out."""
        found = {}
        for draft in (*self._missing, *(draft for draft, _ in self._served.values())):
            with suppress(RepositoryError):
                found[draft.name] = tuple(read_ensemble(draft).members)
        return found

    def withdraw(self, name: str) -> None:
        """Forget an ensemble that was offered; it is removed if it is served."""
        self._missing = [draft for draft in self._missing if draft.name != name]
        for model in [model for _, model in self._served.values() if model.name == name]:
            self.remove(model)
            self._registry.forget(name)

    def remove(self, model: Model) -> None:
        """Stop routing to an ensemble; accepted requests are still answered."""
        self._table.withdraw(model.key)
        self._apps.remove(model.key)
        self._served.pop(model.key, None)

    def follow(self) -> None:
        """Look again at every ensemble after models were loaded or unloaded."""
        missing = [one for one in self._missing if not self._registry.serving(one.name)]
        serving, failures = self._try(missing)
        self._missing = [draft for draft, _ in failures]
        for model in serving:
            _log.info("ensemble %s is served, too", model.name)
        for draft, model in list(self._served.values()):
            why = ""
            try:
                app = self._checked(draft)
                if self._slo_ms(draft, app) != model.terms.slo_ms:  # a member's has changed
                    self._enter(self.serve(draft, model.generation), "")
            except RepositoryError as error:
                why = str(error)
            served = self._table.resolve(model.name, str(model.version))
            if served.ready != (not why):
                served.ready = not why
                self._enter(model, why)
                state = f"is not ready: {why}" if why else "is ready again"
                _log.warning("ensemble %s %s", model.name, state)

    def _checked(self, draft: Draft) -> App:
        """The graph, whose members fit. Raises RepositoryError."""
        app = read_ensemble(draft)
        check_members(app, draft.provisional().signature, self._find, draft.config)
        return app

    def _slo_ms(self, draft: Draft, app: App) -> float:
        members = [self._find(step.model, step.version) for step in app.steps]
        return ensemble_slo_ms(draft, members)

    def _enter(self, model: Model, why: str) -> None:
        state = VersionState.UNAVAILABLE if why else VersionState.READY
        self._registry.put(VersionEntry(model.name, str(model.version), state, why, model))

    def _find(self, name: str, version: str) -> Model:
        served = self._table.resolve(name, version)
        if not served.ready:
            raise ServeError(Reason.NOT_READY, f"model '{name}' is not ready")
        return served.model


def readable(drafts: Sequence[Draft]) -> Iterator[tuple[Draft, App]]:
    """Yield the graphs of these ensembles, without those that cannot be read."""
    for draft in drafts:
        with suppress(RepositoryError):
            yield draft, read_ensemble(draft)


def ensemble_slo_ms(draft: Draft, members: Iterable[Model]) -> float:
    """The SLO of an ensemble; one that nobody set is at least as long as its members take."""
    terms = draft.terms
    limits_ms = [one.limit_ms for one in members] if terms.slo_assumed else []
    return max(terms.slo_ms, *limits_ms, 0.0)


def member_demands(
    drafts: Sequence[Draft], members: Mapping[str, PreparedModel]
) -> dict[str, Demand]:
    """What members are planned for, with the requests of ensembles, by deployment key.

    An SLO is divided so that the members cost the least of a whole accelerator, at the ensemble's
    expected rate (``stage_budgets``). A member has the time that the tightest ensemble leaves it.
    At run time a step has what is left. ``members`` are by name.
    """
    found: dict[str, Demand] = {}
    for draft, app in readable(drafts):
        if not all(step.model in members for step in app.steps):
            continue
        used = {step.model: members[step.model] for step in app.steps}
        latencies_ms = {
            name: row_latencies_ms(one.profile, one.model.signature.max_batch)
            for name, one in used.items()
        }
        rate_rps = draft.terms.rate_rps or 0.0
        slo_ms = ensemble_slo_ms(draft, [one.model for one in used.values()])
        for stage in stage_budgets(app, latencies_ms, rate_rps, slo_ms):
            model = used[stage.model].model
            known = found.get(model.key, demand_of(model))
            found[model.key] = replace(
                known,
                rows_per_s=known.rows_per_s + stage.rows_per_s,
                slo_ms=min(known.slo_ms, stage.budget_ms),
            )
    return found
