"""Load, reload, unload and shutdown under traffic: nothing lost, memory given back."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from interlace.apps.graph import read_ensemble
from interlace.control.deployments import Deployments
from interlace.control.ensembles import Ensembles
from interlace.control.model_preparer import ModelPreparer, failure_text, prepared_model
from interlace.control.registry import UNLOADED, VersionEntry, VersionRegistry, VersionState
from interlace.control.uploads import Uploads
from interlace.core.errors import Reason, RepositoryError, ServeError, bad_input
from interlace.core.model import Format, Model, ServiceTerms
from interlace.device.base import Registers
from interlace.repository.draft import Draft
from interlace.repository.folder import check_name, select_versions
from interlace.repository.model_config import parse_json
from interlace.server.administration.api import IndexEntry
from interlace.server.dataplane.model_calls import way_of_calls
from interlace.server.dataplane.plane import DataPlane
from interlace.server.model_table import NAME_CHARS


@dataclass(slots=True)
class ModelLifecycle:
    """The ``Control`` of transports. Changes of one model name are made one after the other."""

    _preparation: ModelPreparer
    _deployments: Deployments
    _device: Registers
    _registry: VersionRegistry
    _ensembles: Ensembles
    _uploads: Uploads
    _allow_missing: Collection[str] = ()
    started: bool = False
    draining: bool = False
    _complete: bool = False
    _generations: Iterator[int] = field(default_factory=lambda: count(1))
    #: And who holds or waits.
    _locks: dict[str, tuple[asyncio.Lock, int]] = field(default_factory=dict)
    #: What no request reaches any more and that has some to answer, until nothing is left of it.
    _leaving: dict[str, tuple[Model, asyncio.Future[None]]] = field(default_factory=dict)
    #: By models whose code loads or unloads.
    _awaited: dict[str, Counter[str]] = field(default_factory=dict)

    def ready(self) -> bool:
        """True once every model that must be served was: later failures are those models' own."""
        if self.started and not self._complete and "all" not in self._allow_missing:
            self._complete = self._registry.missing() <= set(self._allow_missing)
        complete = self._complete or "all" in self._allow_missing
        return self.started and complete and not self.draining

    def failed(self) -> dict[str, str]:
        """Models without which it is not ready and that are not being loaded any more, and why."""
        names = self._registry.missing() - set(self._allow_missing)
        if self.ready() or "all" in self._allow_missing:
            return {}
        return {name: why for name in sorted(names) if (why := self._registry.why_failed(name))}

    def index(self, ready_only: bool = False) -> Sequence[IndexEntry]:
        return self._registry.index(ready_only)

    async def names(self) -> list[str]:
        """What may be model folders.

        Raises:
            RepositoryError: the repository itself cannot be read.
        """
        return await self._preparation.names()

    def serving(self) -> set[str]:
        """Names of the models that are served; ensembles are not assigned: they follow."""
        models = (one.model for one in self._registry.all() if one.model is not None)
        return {one.name for one in models if one.format is not Format.ENSEMBLE}

    async def digests(self, name: str) -> list[str]:
        """The digests of the files of each version of a model that would be loaded.

        Raises:
            RepositoryError: they cannot be read, or say nothing of use.
        """
        found = await self._preparation.found(name)
        versions = found.versions if found is not None else ()
        return [(await self._preparation.draft(name, one)).digest for one in versions]

    async def load(
        self,
        name: str,
        config: str | None = None,
        files: Mapping[str, bytes] | None = None,
        caller: str = "",
    ) -> None:
        if files and config is None:
            raise bad_input(f"failed to load '{name}': files need the parameter 'config', too")
        with self._awaited_by(caller, name, "load"):
            if caller and self._comes_with_the_server(name, config):
                return
            if caller in self._preparation.measured and name in self._locks:
                raise _while_measured(name, caller)
            async with self.locked(name):
                try:
                    await self._load_all(name, config, files, caller)
                finally:
                    self._drop_files(name)
            self._ensembles.follow()
        await self._left(name, caller)

    async def _load_all(
        self, name: str, config: str | None, files: Mapping[str, bytes] | None, caller: str
    ) -> None:
        root: Path | None = None
        if files:
            self._check_name(name)
            root = await self._uploads.write(name, files)
        drafts = await self._drafts(name, config, root)
        wanted = {str(draft.version) for draft in drafts}
        for draft in drafts:
            if caller not in self._preparation.measured:
                await self._load(draft, sent=root is not None and not caller)
            elif all(draft.digest != one.digest for one in self._registry.serving(name)):
                raise _while_measured(name, caller)
        for model in self._registry.serving(name):
            if str(model.version) not in wanted:
                self._remove(model)

    async def unload(self, name: str, caller: str = "") -> None:
        with self._awaited_by(caller, name, "unload"):
            async with self.locked(name):
                for model in self._registry.serving(name):
                    self._remove(model)
                self._drop_files(name)
            self._ensembles.follow()
        await self._left(name, caller)

    async def _left(self, name: str, caller: str) -> None:
        """Wait for what leaves, unless a model asks: its own batch may be in the way of that."""
        leaving = [gone for model, gone in self._leaving.values() if model.name == name]
        if leaving and not caller:
            await asyncio.wait(leaving)

    def _comes_with_the_server(self, name: str, config: str | None) -> bool:
        """Whether the start of the server serves a model: waiting for it could never end.

        Raises:
            ServeError: it is to have another configuration.
        """
        entries = [one for one in self._registry.all() if one.name == name]
        if self.started or not any(one.state is VersionState.LOADING for one in entries):
            return False
        if config is not None:
            text = f"failed to load '{name}' with a configuration: the server is loading it"
            raise ServeError(Reason.NOT_READY, text)
        return True

    def _drop_files(self, name: str) -> None:
        leaving = (model for model, _ in self._leaving.values() if model.name == name)
        used = [model.path for model in (*self._registry.serving(name), *leaving)]
        self._uploads.drop_unused(name, used)

    @contextmanager
    def _awaited_by(self, caller: str, name: str, what: str) -> Iterator[None]:
        """Note that one model waits for another, if a model asks.

        Raises:
            ServeError: BAD_INPUT, the other waits for it, perhaps through more of them.
        """
        if not caller:
            yield
            return
        if way := way_of_calls(self._awaited, name, caller):
            chain = " -> ".join((caller, *way))
            text = f"model '{caller}' cannot {what} '{name}': they would wait in a circle: {chain}"
            raise bad_input(text)
        awaited = self._awaited.setdefault(caller, Counter())
        awaited[name] += 1
        try:
            yield
        finally:
            awaited[name] -= 1
            if not awaited[name]:
                del awaited[name]
            if not awaited:
                self._awaited.pop(caller, None)

    @asynccontextmanager
    async def locked(self, name: str) -> AsyncIterator[None]:
        """Hold the lock of a name; it is forgotten when no one holds or waits for it."""
        lock, waiting = self._locks.get(name) or (asyncio.Lock(), 0)
        self._locks[name] = lock, waiting + 1
        try:
            async with lock:
                yield
        finally:
            lock, waiting = self._locks[name]
            self._locks[name] = lock, waiting - 1
            if waiting == 1:
                del self._locks[name]

    def _check_name(self, name: str) -> None:
        try:
            check_name(name)
        except RepositoryError as error:
            raise _unknown(name, str(error)) from error

    async def _drafts(self, name: str, config: str | None, root: Path | None) -> list[Draft]:
        """Drafts of all its versions; unknown names leave no trace in the registry.

        They are in a ``root`` of their own if files came with the load.
        """
        if root is not None:
            return await self._drafts_of_files(name, config or "", root)
        try:
            await self._preparation.look_again()
            found = await self._preparation.found(name)
        except RepositoryError as error:
            raise _unknown(name, str(error)) from error
        if found is None:
            if not self._registry.serving(name):
                self._registry.forget(name)
            raise _unknown(name, f"{self._preparation.root} has no such folder")
        try:
            if found.error is not None:
                raise RepositoryError(str(self._preparation.root / name), found.error, "a model")
            drafts = [
                await self._preparation.draft(name, version, config) for version in found.versions
            ]
        except RepositoryError as error:
            raise self._failed(name, "", str(error)) from error
        return drafts

    async def _drafts_of_files(self, name: str, config: str, root: Path) -> list[Draft]:
        try:
            versions = select_versions(root / name, parse_json(config))
            return [await self._preparation.draft(name, one, config, root) for one in versions]
        except RepositoryError as error:
            raise self._failed(name, "", str(error)) from error

    async def _load(self, draft: Draft, sent: bool = False) -> None:
        """Bring up one version next to the one that serves, then switch.

        ``sent`` if a client sent its files.
        """
        name, version = draft.name, str(draft.version)
        before = next((m for m in self._registry.serving(name) if m.version == draft.version), None)
        model: Model | None = None
        try:
            if draft.format is Format.ENSEMBLE:
                self._switch(before, await self._join(draft))
                return
            model = await self._preparation.open(draft, next(self._generations), sent)
            if before is not None and _same(before, model) and self._serves(before):
                self._registry.put(VersionEntry(name, version, VersionState.READY, model=before))
                return
            if before is None:
                self._registry.put(VersionEntry(name, version, VersionState.LOADING))
            self._device.register(model)
            filled = await self._preparation.profile_quickly(model)
            prepared = prepared_model(draft, model, filled)
            model = prepared.model
            await self._deployments.bring_up(prepared)
        except Exception as error:
            if model is not None:
                self._device.forget(model.key)
            raise self._failed(name, version, failure_text(error), before) from error
        self._switch(before, model)

    def _switch(self, before: Model | None, model: Model) -> None:
        """Enter a model that is served now; take down the one that it replaces."""
        entry = VersionEntry(model.name, str(model.version), VersionState.READY, model=model)
        self._registry.put(entry)
        if before is not None:
            self._take_down(before)

    def _take_down(self, model: Model) -> None:
        if model.format is Format.ENSEMBLE:
            self._ensembles.remove(model)
            return
        gone = self._deployments.take_down(model)
        self._leaving[model.key] = model, gone
        gone.add_done_callback(lambda _: self._gone(model))

    def _gone(self, model: Model) -> None:
        del self._leaving[model.key]
        if model.name not in self._locks:  # else whoever has the lock does it
            self._drop_files(model.name)
        entry = self._registry.of_version(model.key)
        if entry is not None and entry.state is VersionState.UNLOADING:
            self._registry.put(replace(entry, state=VersionState.UNAVAILABLE))

    async def _join(self, draft: Draft) -> Model:
        """Serve an ensemble; its members are loaded before, where they are not served yet."""
        await self._check_no_cycle(draft, (draft.name,))
        for member in read_ensemble(draft).members:
            if not self._registry.serving(member):
                await self.load(member, caller=draft.name)
        return self._ensembles.serve(draft, next(self._generations))

    async def _check_no_cycle(self, draft: Draft, within: tuple[str, ...]) -> None:
        """Refuse ensembles that contain each other: each load would wait for the other's.

        Raises:
            RepositoryError: the names that lead back to the first.
        """
        for member in read_ensemble(draft).members:
            if member in within:
                cycle = " -> ".join((*within, member))
                key = "ensemble_scheduling.step"
                raise draft.config.error(key, f"a cycle: {cycle}", "ensembles of other models")
            found = await self._preparation.found(member)
            for version in found.versions if found is not None else ():
                inner = await self._preparation.draft(member, version)
                if inner.format is Format.ENSEMBLE:
                    await self._check_no_cycle(inner, (*within, member))

    def _serves(self, model: Model) -> bool:
        """True unless the deployment is quarantined: then loading it again starts it afresh."""
        entry = self._registry.by_key(model.key)
        return entry is not None and entry.state is VersionState.READY

    def _remove(self, model: Model) -> None:
        leaves = VersionState.UNLOADING
        if model.format is Format.ENSEMBLE:
            leaves = VersionState.UNAVAILABLE
        self._registry.put(VersionEntry(model.name, str(model.version), leaves, UNLOADED))
        self._take_down(model)

    def _failed(
        self, name: str, version: str, detail: str, before: Model | None = None
    ) -> ServeError:
        """Record a failed load; a version that serves goes on serving."""
        if before is not None:
            kept = f"the last reload failed: {detail}"
            state = VersionState.READY if self._serves(before) else VersionState.UNAVAILABLE
            self._registry.put(VersionEntry(name, version, state, kept, before))
        elif version or not self._registry.serving(name):
            self._registry.put(VersionEntry(name, version, VersionState.UNAVAILABLE, detail))
        return ServeError(Reason.BACKEND, f"failed to load '{name}', {detail}")


def _while_measured(name: str, caller: str) -> ServeError:
    """Measuring one model keeps others from being loaded: it cannot wait for them."""
    text = f"failed to load '{name}': '{caller}' is being measured; load '{name}' before it"
    return ServeError(Reason.NOT_READY, text)


def _unknown(name: str, detail: str) -> ServeError:
    """Nothing can be loaded under that name."""
    short = name[:NAME_CHARS]
    return ServeError(
        Reason.UNKNOWN_MODEL,
        f"failed to load '{short}', failed to poll from model repository: {detail}",
    )


def _same(before: Model, after: Model) -> bool:
    """True if reloading would change nothing that is served."""
    return (
        before.digest == after.digest
        and before.signature == after.signature
        and _stated(before) == _stated(after)
        and before.labels == after.labels
    )


def _stated(model: Model) -> ServiceTerms:
    """Its terms without an SLO that was measured."""
    terms = model.terms
    return replace(terms, slo_ms=0.0) if terms.slo_assumed else terms


async def drain(
    lifecycle: ModelLifecycle,
    plane: DataPlane,
    transports: Sequence[Awaitable[None]],
    grace_s: float,
) -> int:
    """Refuse new requests, answer the accepted ones and send their last bytes.

    ``transports`` are the endings of the transports, which have limits of their own. Return how
    many requests were unanswered when ``grace_s`` ran out: 0 unless a model hangs.
    """
    lifecycle.draining = True
    plane.stop_accepting()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(grace_s):
            await plane.drained()
    await asyncio.gather(*transports)
    return plane.in_flight
